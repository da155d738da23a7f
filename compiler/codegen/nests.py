"""Split a scheduled function into its outermost loop nests, so that equal nests are compiled once.

Candidates of a workload often differ in one nest only: evolution mutates one stage, and the others keep their
loops. Machine code takes most of a build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import Var, make_node
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import For, IntImm, PrimFunc, SeqStmt

from compiler.tir_nodes import contains, find_all

# The name of all nests. They get others when they are compiled.
NEST = "nest"
# The attribute of a nest that lists the names of its parameters that another nest writes or reads: they are
# still in a cache.
INTERMEDIATE = "tunefarm.intermediate"
_KEPT_ATTRIBUTES = ("s_tir", "tirx.noalias")


@dataclass(frozen=True)
class Nest:
    """A loop nest as a function. `operands` are the positions of its arguments among the parameters of the
    function that was split, followed by its intermediate tensors.
    """

    function: PrimFunc
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Nests:
    """The loop nests of a function in their order, with the shapes and types of the tensors that one nest
    leaves to another.
    """

    nests: tuple[Nest, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


def split_nests(function: PrimFunc) -> Nests:
    """Split a scheduled function at its root block.

        main(data, result):
            for i, k: padded[i, k] = ...data...
            for i, j, k: result[i, j] += padded[i, k] * ...
    ->
        nest(data, padded):
            for i, k: padded[i, k] = ...data...
        nest(padded, result):
            for i, j, k: result[i, j] += padded[i, k] * ...

    A tensor that only one nest uses stays inside it. A function without a root block of loops is one nest.
    """
    root = function.body.block if isinstance(function.body, SBlockRealize) else None
    parts = list(root.body.seq) if root is not None and isinstance(root.body, SeqStmt) else []
    if root is None or not all(isinstance(part, For | SBlockRealize) for part in parts) or not parts:
        whole = Nest(_named(function), tuple(range(len(function.params))))
        return Nests((whole,), (), ())
    used = [find_all(part, Var) for part in parts]
    shared = [tensor for tensor in root.alloc_buffers if sum(contains(found, tensor) for found in used) > 1]
    tensors = [*function.params, *shared]
    nests = []
    for part, found in zip(parts, used, strict=True):
        operands = tuple(index for index, tensor in enumerate(tensors) if contains(found, tensor))
        own = [
            tensor
            for tensor in root.alloc_buffers
            if contains(found, tensor) and not contains(shared, tensor)
        ]
        arguments = [tensors[index] for index in operands]
        names = [tensor.name for tensor in arguments if contains(shared, tensor)]
        nest = _nest(function, root, part, own, arguments).with_attr(INTERMEDIATE, names)
        nests.append(Nest(nest, operands))
    return Nests(
        tuple(nests),
        tuple(tuple(int(extent) for extent in tensor.ty.shape) for tensor in shared),
        tuple(str(tensor.ty.dtype) for tensor in shared),
    )


def _nest(
    function: PrimFunc, root: SBlock, part: Any, own: Sequence[Any], operands: Sequence[Any]
) -> PrimFunc:
    block = SBlock([], [], [], root.name_hint, part, alloc_buffers=own, annotations=root.annotations)
    body = SBlockRealize([], IntImm("bool", 1), block)
    return _named(PrimFunc(operands, body, function.ret_type, attrs=function.attrs))


def _named(function: PrimFunc) -> PrimFunc:
    """Drop the attributes that describe the function's parameters by position, and its own name."""
    kept = {name: value for name, value in function.attrs.items() if name in _KEPT_ATTRIBUTES}
    attributes = make_node("ir.DictAttrs", **kept, global_symbol=NEST)
    return PrimFunc(function.params, function.body, function.ret_type, attrs=attributes)
