"""Read the dimensions of a PyTorch exported program's inputs, without PyTorch."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from typing import IO

import msgspec

_SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")
# PyTorch's operators that write their first argument end in an underscore: aten.index_copy_.default.
_IN_PLACE = re.compile(r"[^_.]_\.\w+$")
_UNLIMITED = (1 << 63) - 1


class MalformedProgram(ValueError):
    """The file isn't an exported program that this module can read."""


@dataclass(frozen=True)
class ProgramInputs:
    """The dimensions of a program's inputs and of buffers that it writes, by name, and what they may be.

    A dimension is an extent, the name of a dynamic one, or "" for one that is computed from others. The
    service computes the shapes of inputs in `computed` from the other inputs. `limits` has the least and the
    greatest size of dynamic dimensions. A program that `writes_buffers`, or constants, may be a decoder
    with a cache.
    """

    dimensions: dict[str, tuple[int | str, ...]]
    computed: frozenset[str]
    limits: dict[str, tuple[int, int]]
    writes_buffers: bool


class _Expression(msgspec.Struct):
    expr_str: str


class _Extent(msgspec.Struct):
    as_int: int | None = None
    as_expr: _Expression | None = None


class _TensorValue(msgspec.Struct):
    sizes: list[_Extent]


class _Name(msgspec.Struct):
    name: str


class _Argument(msgspec.Struct):
    as_tensor: _Name | None = None


class _NodeInput(msgspec.Struct):
    arg: _Argument


class _Node(msgspec.Struct):
    target: str
    inputs: list[_NodeInput]


class _Graph(msgspec.Struct):
    tensor_values: dict[str, _TensorValue]
    nodes: list[_Node]


class _Buffer(msgspec.Struct):
    arg: _Name
    buffer_name: str


class _Constant(msgspec.Struct):
    arg: _Name


class _InputSpec(msgspec.Struct):
    user_input: _NodeInput | None = None
    tensor_constant: _Constant | None = None
    buffer: _Buffer | None = None


class _OutputSpec(msgspec.Struct):
    buffer_mutation: _Buffer | None = None


class _Signature(msgspec.Struct):
    input_specs: list[_InputSpec]
    output_specs: list[_OutputSpec]


class _GraphModule(msgspec.Struct):
    graph: _Graph
    signature: _Signature


class _Range(msgspec.Struct):
    min_val: int | None = None
    max_val: int | None = None


class _Program(msgspec.Struct):
    graph_module: _GraphModule
    range_constraints: dict[str, _Range]


def program_inputs(file: IO[bytes]) -> ProgramInputs:
    """Return the inputs of a file of torch.export.save. Raises MalformedProgram."""
    try:
        with zipfile.ZipFile(file) as archive:
            [described] = (name for name in archive.namelist() if name.endswith("models/model.json"))
            program = msgspec.json.decode(archive.read(described), type=_Program)
        graph, signature = program.graph_module.graph, program.graph_module.signature
        tensors = [spec.user_input.arg.as_tensor for spec in signature.input_specs if spec.user_input]
        written = _written_buffers(graph, signature)
        names = [*(tensor.name for tensor in tensors if tensor), *written]
        sizes = {name: graph.tensor_values[name].sizes for name in names}
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, RecursionError) as error:
        raise MalformedProgram("the file isn't a readable exported program") from error
    dimensions = {name: tuple(map(_dimension, extents)) for name, extents in sizes.items()}
    known = {dim for dims in dimensions.values() if "" not in dims for dim in dims}
    return ProgramInputs(
        dimensions,
        frozenset(name for name, dims in dimensions.items() if "" in dims and _symbols(sizes[name]) <= known),
        {
            name: (max(1, one.min_val or 1), one.max_val or _UNLIMITED)
            for name, one in program.range_constraints.items()
        },
        bool(written) or _writes_constants(graph, signature),
    )


def _written_buffers(graph: _Graph, signature: _Signature) -> list[str]:
    """Return the values that are buffers, and are written in place or returned as new contents."""
    returned = {spec.buffer_mutation.buffer_name for spec in signature.output_specs if spec.buffer_mutation}
    written = _written(graph)
    buffers = [spec.buffer for spec in signature.input_specs if spec.buffer]
    return [one.arg.name for one in buffers if one.arg.name in written or one.buffer_name in returned]


def _writes_constants(graph: _Graph, signature: _Signature) -> bool:
    """Return whether a program writes constants in place, as it writes transformers' static caches."""
    constants = {spec.tensor_constant.arg.name for spec in signature.input_specs if spec.tensor_constant}
    return not constants.isdisjoint(_written(graph))


def _written(graph: _Graph) -> set[str]:
    """Return the values that are written in place."""
    firsts = [node.inputs[0].arg.as_tensor for node in graph.nodes if _is_in_place(node)]
    return {tensor.name for tensor in firsts if tensor}


def _is_in_place(node: _Node) -> bool:
    return bool(node.inputs and _IN_PLACE.search(node.target))


def _dimension(extent: _Extent) -> int | str:
    if extent.as_expr is None:
        return extent.as_int or 0
    symbol = _SYMBOL.fullmatch(extent.as_expr.expr_str)
    return symbol[1] if symbol else ""


def _symbols(extents: list[_Extent]) -> set[str]:
    return {name for one in extents if one.as_expr for name in _SYMBOL.findall(one.as_expr.expr_str)}
