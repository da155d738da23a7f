"""Validation of schedule traces, which may come from other people's machines.

TVM replays any trace, and a trace can do more than transform loops: an annotation with the pragma
`import_llvm` links code into every library that is built with it. So only the instructions, annotations and
index maps that schedules need are accepted.

A trace is JSON: [instructions, decisions], each instruction [kind, inputs, attributes, outputs].
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_INSTRUCTIONS = 10_000
MAX_TEXT_CHARS = 4 << 20

# TVM's schedule primitives, except those that it calls unsafe because they may change what is computed.
INSTRUCTIONS = frozenset(
    (
        *("GetSBlock", "GetLoops", "GetChildBlocks", "GetProducers", "GetConsumers", "GetOutputBlocks"),
        *("SamplePerfectTile", "SamplePartitionedTile", "SampleCategorical", "SampleComputeLocation"),
        *("Split", "LoopPartition", "Merge", "Fuse", "Reorder", "ReorderBlockIterVar", "AddUnitLoop"),
        *("Parallel", "Vectorize", "Unroll", "Bind"),
        *("ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "FuseReductionEpilogue"),
        *("CacheRead", "CacheWrite", "CacheIndex", "CacheInplace", "ReindexCacheRead", "ReindexCacheWrite"),
        *("ReIndex", "ReadAt", "WriteAt", "StorageAlign", "SetScope", "RollingBuffer"),
        *("RFactor", "DecomposeReduction", "DecomposePadding", "PadEinsum"),
        *("Blockize", "Tensorize", "TransformLayout", "TransformBlockLayout"),
        *("Annotate", "Unannotate", "EnterPostproc"),
    )
)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and -(1 << 31) <= value < 1 << 31


def _is_name(value: Any) -> bool:
    """Return whether it is a quoted name, such as "SSRSRS" or that of a tensor intrinsic."""
    return isinstance(value, str) and re.fullmatch(r'"[\w.]{0,128}"', value) is not None


def _is_reference(value: Any) -> bool:
    """Return whether it is an integer, or the name of an earlier instruction's output, such as l1 or v12."""
    return _is_integer(value) or (isinstance(value, str) and re.fullmatch(r"[blv]\d{1,6}", value) is not None)


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) <= 1024 and all(map(is_item, value))


# By key, a test of the value.
ANNOTATIONS: Mapping[str, Callable[[Any], bool]] = {
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
        _is_reference,
    ),
    **dict.fromkeys(
        (
            *("meta_schedule.tiling_structure", "meta_schedule.auto_tensorize"),
            *("meta_schedule.auto_tensorize_init", "schedule_rule"),
        ),
        _is_name,
    ),
    **dict.fromkeys(
        (
            *("software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages"),
            "buffer_dim_align",
        ),
        lambda value: _is_list(value, _is_reference),
    ),
}
# The types of TVM objects that an index map and its padding value consist of: arithmetic on variables.
INDEX_MAP_TYPES = frozenset(
    (
        *("None", "int", "float", "ffi.Array", "ffi.String", "ir.PrimType", "ir.Var", "tirx.IndexMap"),
        *("ir.IntImm", "ir.FloatImm"),
        *("prim.Add", "prim.Sub", "prim.Mul", "prim.FloorDiv", "prim.FloorMod", "prim.Div", "prim.Mod"),
        *("prim.Min", "prim.Max", "prim.Cast"),
    )
)


class TraceRefused(ValueError):
    """A text is no trace, or contains what no schedule needs; the message is one sentence."""


def parse_trace(trace: str) -> list[Any]:
    """Parse a trace and validate all of it. Raises TraceRefused."""
    if len(trace) > MAX_TEXT_CHARS:
        raise TraceRefused(f"a trace has at most {MAX_TEXT_CHARS} characters, not {len(trace)}")
    try:
        steps = json.loads(trace)
    except (ValueError, RecursionError) as error:
        raise TraceRefused("a trace is JSON, and this is none") from error
    if not (isinstance(steps, list) and len(steps) == 2 and all(isinstance(part, list) for part in steps)):
        raise TraceRefused("a trace is a list of instructions and a list of decisions")
    instructions, decisions = steps
    if len(instructions) > MAX_INSTRUCTIONS or len(decisions) > MAX_INSTRUCTIONS:
        raise TraceRefused(f"a trace has at most {MAX_INSTRUCTIONS} instructions and decisions")
    for instruction in instructions:
        _check_instruction(instruction)
    for decision in decisions:
        _check_decision(decision)
    return steps


def _check_instruction(instruction: Any) -> None:
    if not (
        isinstance(instruction, list)
        and len(instruction) == 4
        and isinstance(instruction[0], str)
        and all(isinstance(part, list) for part in instruction[1:])
    ):
        raise TraceRefused("an instruction of a trace is a kind, its inputs, its attributes and its outputs")
    kind, inputs, attributes, _ = instruction
    if kind not in INSTRUCTIONS:
        raise TraceRefused(f"the instruction {kind[:64]!r} is not one that schedules need")
    if kind == "Annotate":
        _check_annotation(inputs, attributes)
    for value in (*inputs, *attributes):
        if isinstance(value, str) and "root_index" in value:
            _check_index_map(kind, value)


def _check_annotation(inputs: Sequence[Any], attributes: Sequence[Any]) -> None:
    if len(inputs) != 2 or len(attributes) != 1 or not isinstance(attributes[0], str):
        raise TraceRefused("an annotation is of one block or loop, and has a key and a value")
    key = attributes[0]
    if key not in ANNOTATIONS:
        raise TraceRefused(f"the annotation {key[:64]!r} is not one that schedules need")
    if not ANNOTATIONS[key](inputs[1]):
        raise TraceRefused(f"the annotation {key} has a value of another kind")


def _check_index_map(kind: str, text: str) -> None:
    try:
        nodes = json.loads(json.loads(text) if text.startswith('"') else text)["nodes"]
        types = {node["type"] for node in nodes}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TraceRefused(f"the index map of {kind} can't be read") from error
    if not types <= INDEX_MAP_TYPES:
        foreign = ", ".join(sorted(map(str, types - INDEX_MAP_TYPES)))
        raise TraceRefused(f"the index map of {kind} is more than arithmetic: {foreign[:200]}")


def _check_decision(decision: Any) -> None:
    """A decision is the index of an instruction, and a number or numbers."""
    is_pair = isinstance(decision, list) and len(decision) == 2 and _is_integer(decision[0])
    if not is_pair or not (
        decision[1] is None or _is_integer(decision[1]) or _is_list(decision[1], _is_integer)
    ):
        raise TraceRefused("a decision of a trace is the number of an instruction and a number or numbers")
