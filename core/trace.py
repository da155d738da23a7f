"""Check untrusted schedule traces against a schema, and write them anew.

TVM replays any trace, and a trace can do more than transform loops. The pragma `import_llvm` links code into
a library. An index map may call a function of the process. So a trace is checked here first. The schema lists
the inputs, attributes and outputs of each kind of instruction. Accepted traces are rewritten from the checked
values, so TVM reads no bytes of the sender.

A trace is JSON: [instructions, decisions]. An instruction is [kind, inputs, attributes, outputs]. A decision
is [number of the instruction, value].
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from core.index_map import IndexMapRefused, rewrite_index_map

MAX_INSTRUCTIONS = 10_000
MAX_ITEMS = 1024
MAX_TEXT_CHARS = 4 << 20
MAX_NAME_CHARS = 256
MAX_INTEGER = (1 << 31) - 1
STORAGE_SCOPES = frozenset(
    (
        *("global", "shared", "shared.dyn", "local", "warp"),
        *("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"),
        *("m16n8k8.matrixA", "m16n8k8.matrixB", "m16n8k8.matrixC"),
    )
)
THREAD_AXES = re.compile(r"(blockIdx|threadIdx|vthread)\.[xyz]|vthread")
_INTRINSIC = re.compile(r"\w[\w.]{0,127}", re.ASCII)
_QUOTED_NAME = re.compile(r'"[\w.]{0,128}"', re.ASCII)
_OUTPUT = re.compile(r"[blv](0|[1-9]\d{0,5})", re.ASCII)


class TraceRefused(ValueError):
    """A text isn't a trace, or contains something that schedules don't need. The message is one sentence."""


@dataclass
class _Scope:
    """The instruction of a value, for messages, and the names that earlier instructions have defined."""

    number: int = 0
    kind: str = ""
    names: set[str] = field(default_factory=set)

    def refuse(self, why: str) -> NoReturn:
        raise TraceRefused(f"instruction {self.number}, {self.kind}: {why}")


# Checks a value, and returns it in the form for TVM. Raises TraceRefused.
_Read = Callable[[Any, _Scope], Any]


def _integer(value: Any, scope: _Scope) -> int:
    if not isinstance(value, int) or not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        scope.refuse(f"{_shown(value)} is no integer of 32 bits")
    return value


def _probability(value: Any, scope: _Scope) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        scope.refuse(f"{_shown(value)} is no probability")
    return value


def _name(value: Any, scope: _Scope) -> str:
    """Read the name of a block or function. It is later compared with the workload's names."""
    is_text = isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS
    if not is_text or not value.isprintable() or '"' in value or "\\" in value:
        scope.refuse(f"{_shown(value)} is no name")
    return str(value)


def _one_of(what: str, is_valid: Callable[[str], object]) -> _Read:
    def read(value: Any, scope: _Scope) -> str:
        if not isinstance(value, str) or not is_valid(value):
            scope.refuse(f"{_shown(value)} is no {what}")
        return value

    return read


def _reference(kinds: str, what: str) -> _Read:
    """Return a reader for the name of an earlier output of one of these kinds, such as l1 or v12."""

    def read(value: Any, scope: _Scope) -> str:
        if not isinstance(value, str) or value not in scope.names or value[0] not in kinds:
            scope.refuse(f"{_shown(value)} is no {what} of an earlier instruction")
        return value

    return read


def _list_of(item: _Read) -> _Read:
    def read(value: Any, scope: _Scope) -> list[Any]:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            scope.refuse(f"{_shown(value)} is no list of at most {MAX_ITEMS} items")
        return [item(each, scope) for each in value]

    return read


def _either(first: _Read, second: _Read, is_first: Callable[[Any], bool]) -> _Read:
    return lambda value, scope: (first if is_first(value) else second)(value, scope)


def _index_map(indent: int | None) -> _Read:
    """Return a reader for an index map: JSON within the trace, with TVM's indent."""

    def read(value: Any, scope: _Scope) -> str:
        try:
            return rewrite_index_map(value, indent)
        except IndexMapRefused as error:
            scope.refuse(str(error))

    return read


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_block = _reference("b", "block")
_loop = _reference("l", "loop")
_block_or_loop = _reference("bl", "block or loop")
_variable = _reference("v", "variable")
_number = _either(_variable, _integer, _is_text)
# In TVM's traces, a missing value is the text None.
_factor = _either(lambda value, scope: value, _number, lambda value: value == "None")
_scope = _one_of("storage scope", STORAGE_SCOPES.__contains__)
_thread = _one_of("GPU thread axis", THREAD_AXES.fullmatch)
_intrinsic = _one_of("name of an intrinsic", _INTRINSIC.fullmatch)
_quoted_name = _one_of("quoted name", _QUOTED_NAME.fullmatch)
_integers = _list_of(_integer)
_optional_map = _either(lambda value, scope: None, _index_map(2), lambda value: value is None)

# Marks the result of an attention with the sizes of its kernel (compiler.codegen.online_attention).
ONLINE_ATTENTION = "online_attention"
# Marks the copy of a tile with the shape of the matrix that it is a part of (compiler.codegen.tensor_maps).
TENSOR_MAP = "tensor_map"
ANNOTATIONS: Mapping[str, _Read] = {
    **dict.fromkeys(
        (
            *("pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_loop_partition_hint"),
            *("meta_schedule.parallel", "meta_schedule.vectorize", "meta_schedule.random_compute_producer"),
            *("meta_schedule.unroll_explicit", "meta_schedule.unroll_implicit"),
            *("meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive"),
            *("meta_schedule.cooperative_fetch", "meta_schedule.inline_rule", "meta_schedule.cache_type"),
            *("meta_schedule.layout_rewrite_preproc", "warp_execution"),
            *("meta_schedule.tensor_core_enabled", "vector_bytes", "double_buffer_scope"),
            *("tirx.double_buffer_scope", "tirx.manifest_shared_memory_local_stage"),
        ),
        _number,
    ),
    **dict.fromkeys(
        (
            *("meta_schedule.tiling_structure", "meta_schedule.auto_tensorize"),
            "meta_schedule.auto_tensorize_init",
        ),
        _quoted_name,
    ),
    **dict.fromkeys(
        (
            *("software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages"),
            *("buffer_dim_align", ONLINE_ATTENTION, TENSOR_MAP),
        ),
        _list_of(_number),
    ),
}
_annotation = _one_of("annotation that schedules need", ANNOTATIONS.__contains__)


@dataclass(frozen=True)
class _Instruction:
    """The schema of a kind of instruction. `rest` reads each input after `inputs`.

    `outputs` is the letter of the outputs' kind: block, loop or variable. A + follows if there may be any
    number. It is empty for an instruction without outputs.
    """

    inputs: tuple[_Read, ...] = ()
    attributes: tuple[_Read, ...] = ()
    outputs: str = ""
    rest: _Read | None = None
    decision: _Read | None = None


_annotated_block = _Instruction((_block,))
_annotated_loop = _Instruction((_loop,))
_compute_at = _Instruction((_block, _loop), (_integer, _integer))
_cache = _Instruction((_block, _list_of(_block)), (_integer, _scope), "b")
_reindex_cache = _Instruction((_block, _index_map(None)), (_integer, _scope), "b")
_copy_at = _Instruction((_loop, _block), (_integer, _scope), "b")
_decompose = _Instruction((_block, _loop), (), "b")
_neighbours = _Instruction((_block,), (), "b+")
# TVM's schedule primitives, except the ones that it calls unsafe because they may change the result.
# AnnotateBufferAccess is left out too, because it lets a block declare wrong accesses. CacheInplace uses a
# block's variable outside of the block.
INSTRUCTIONS: Mapping[str, _Instruction] = {
    "GetSBlock": _Instruction((), (_name, _name), "b"),
    "GetLoops": _Instruction((_block,), (), "l+"),
    "GetChildBlocks": _Instruction((_block_or_loop,), (), "b+"),
    "GetProducers": _neighbours,
    "GetConsumers": _neighbours,
    "GetOutputBlocks": _neighbours,
    "SamplePerfectTile": _Instruction((_loop,), (_integer,) * 2, "v+", decision=_integers),
    "SamplePartitionedTile": _Instruction((_loop,), (_integer,) * 3, "v+", decision=_integers),
    "SampleCategorical": _Instruction((), (_integers, _list_of(_probability)), "v", decision=_integer),
    "SampleComputeLocation": _Instruction((_block,), (), "l", decision=_integer),
    "Split": _Instruction((_loop,), (_integer, _integer), "l+", rest=_factor),
    "LoopPartition": _Instruction((_loop,), (_integer,), "l+", rest=_factor),
    "Merge": _Instruction((), (), "l", rest=_loop),
    "Fuse": _Instruction((), (_integer,), "l", rest=_loop),
    "Reorder": _Instruction((), (), "", rest=_loop),
    "ReorderBlockIterVar": _Instruction((_block, _integers)),
    "AddUnitLoop": _Instruction((_block_or_loop,), (), "l"),
    "Parallel": _annotated_loop,
    "Vectorize": _annotated_loop,
    "Unroll": _annotated_loop,
    "Bind": _Instruction((_loop,), (_thread,)),
    "ComputeAt": _compute_at,
    "ReverseComputeAt": _compute_at,
    "ComputeInline": _annotated_block,
    "ReverseComputeInline": _annotated_block,
    "FuseReductionEpilogue": _Instruction((_block, _block)),
    "CacheRead": _cache,
    "CacheWrite": _cache,
    "CacheIndex": _Instruction((_block,), (_scope, _integer), "b+"),
    "ReindexCacheRead": _reindex_cache,
    "ReindexCacheWrite": _reindex_cache,
    "ReIndex": _Instruction((_block,), (_integer, _integer), "b"),
    "ReadAt": _copy_at,
    "WriteAt": _copy_at,
    "StorageAlign": _Instruction((_block,), (_integer,) * 4),
    "SetScope": _Instruction((_block,), (_integer, _scope)),
    "RollingBuffer": _Instruction((_block,), (_integer,)),
    "RFactor": _Instruction((_loop,), (_integer,), "b"),
    "DecomposeReduction": _decompose,
    "DecomposePadding": _decompose,
    "PadEinsum": _Instruction((_block,), (_integers,)),
    "Blockize": _Instruction((_either(_block_or_loop, _list_of(_block), _is_text),), (_integer,), "b"),
    "Tensorize": _Instruction((_block_or_loop,), (_intrinsic, _integer)),
    "TransformLayout": _Instruction(
        (_block, _index_map(None)), (_integer, _integer, _optional_map, _integer)
    ),
    "TransformBlockLayout": _Instruction((_block,), (_index_map(2),)),
    # The value's reader depends on the key.
    "Annotate": _Instruction((_block_or_loop, lambda value, scope: value), (_annotation,)),
    "Unannotate": _Instruction((_block_or_loop,), (_annotation,)),
    "EnterPostproc": _Instruction(),
}


def parse_trace(trace: str) -> list[Any]:
    """Parse and check a trace. Return its instructions and decisions. Raises TraceRefused."""
    if len(trace) > MAX_TEXT_CHARS:
        raise TraceRefused(f"a trace has at most {MAX_TEXT_CHARS} characters, not {len(trace)}")
    try:
        steps = json.loads(trace)
    except (ValueError, RecursionError) as error:
        raise TraceRefused("a trace is JSON, and this isn't") from error
    if not (isinstance(steps, list) and len(steps) == 2 and all(isinstance(part, list) for part in steps)):
        raise TraceRefused("a trace is a list of instructions and a list of decisions")
    instructions, decisions = steps
    if len(instructions) > MAX_INSTRUCTIONS or len(decisions) > MAX_INSTRUCTIONS:
        raise TraceRefused(f"a trace has at most {MAX_INSTRUCTIONS} instructions and decisions")
    scope = _Scope()
    read = [_read_instruction(number, one, scope) for number, one in enumerate(instructions)]
    return [read, _read_decisions(decisions, read)]


def write_trace(steps: Sequence[Any]) -> str:
    """Return a parsed trace as JSON. Traces are stored and sent only in this form."""
    return json.dumps(steps, separators=(",", ":"))


def _read_instruction(number: int, instruction: Any, scope: _Scope) -> list[Any]:
    if type(instruction) is not list or [*map(type, instruction)] != [str, list, list, list]:
        raise TraceRefused("an instruction is a kind, its inputs, its attributes and its outputs")
    kind, inputs, attributes, outputs = instruction
    schema = INSTRUCTIONS.get(kind)
    if schema is None:
        raise TraceRefused(f"the instruction {_shown(kind)} is not one that schedules need")
    scope.number, scope.kind = number, kind
    readers = schema.inputs
    if schema.rest is not None:
        readers += (schema.rest,) * min(len(inputs) - len(readers), MAX_ITEMS)
    if len(inputs) != len(readers):
        scope.refuse(f"it has {len(inputs)} inputs, not {len(readers)}")
    if len(attributes) != len(schema.attributes):
        scope.refuse(f"it has {len(attributes)} attributes, not {len(schema.attributes)}")
    read_attributes = [read(value, scope) for read, value in zip(schema.attributes, attributes, strict=True)]
    read_inputs = [read(value, scope) for read, value in zip(readers, inputs, strict=True)]
    if kind == "Annotate":
        [key] = read_attributes
        read_inputs[1] = ANNOTATIONS[key](inputs[1], scope)
    return [kind, read_inputs, read_attributes, _read_outputs(schema.outputs, outputs, scope)]


def _read_outputs(kind: str, outputs: Sequence[Any], scope: _Scope) -> list[str]:
    """Read the names of an instruction's outputs, and add them to the scope."""
    if not kind and not outputs:
        return []
    letter, is_any_number = kind[:1], kind.endswith("+")
    if len(outputs) > MAX_ITEMS or not (is_any_number or len(outputs) == len(letter)):
        scope.refuse(f"it has {len(outputs)} outputs")
    for name in outputs:
        if not isinstance(name, str) or not _OUTPUT.fullmatch(name) or name[0] != letter:
            scope.refuse(f"{_shown(name)} is no name of its outputs")
        if name in scope.names:
            scope.refuse(f"the name {name} is given twice")
        scope.names.add(name)
    return list(outputs)


def _read_decisions(decisions: Sequence[Any], instructions: Sequence[Any]) -> list[Any]:
    """Read decisions. Each has the number of a sampling instruction, and one or more integers."""
    read: list[Any] = []
    decided: set[int] = set()
    for decision in decisions:
        is_pair = isinstance(decision, list) and len(decision) == 2 and type(decision[0]) is int
        if not is_pair or not 0 <= decision[0] < len(instructions):
            raise TraceRefused("a decision of a trace is an instruction's number and a number or numbers")
        number, value = decision
        kind = instructions[number][0]
        reader = INSTRUCTIONS[kind].decision
        scope = _Scope(number, kind)
        if reader is None or number in decided:
            scope.refuse("nothing is decided there, or it is decided twice")
        decided.add(number)
        read.append([number, None if value is None else reader(value, scope)])
    return read


def _shown(value: Any) -> str:
    """Return an untrusted value for a message, shortened and printable."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return ascii(value)[:64] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
