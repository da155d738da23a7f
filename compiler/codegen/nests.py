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

from compiler.tir_nodes import find_all

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
        whole = _function(function, function.params, function.body)
        return Nests((Nest(whole, tuple(range(len(function.params)))),), (), ())
    used = [set(find_all(part, Var)) for part in parts]
    shared = [tensor for tensor in root.alloc_buffers if sum(tensor in found for found in used) > 1]
    tensors = [*function.params, *shared]
    nests = []
    for part, found in zip(parts, used, strict=True):
        operands = tuple(index for index, tensor in enumerate(tensors) if tensor in found)
        own = [tensor for tensor in root.alloc_buffers if tensor in found and tensor not in set(shared)]
        block = SBlock([], [], [], root.name_hint, part, alloc_buffers=own, annotations=root.annotations)
        body = SBlockRealize([], IntImm("bool", 1), block)
        names = [tensor.name for tensor in shared if tensor in found]
        nest = _function(function, [tensors[index] for index in operands], body, names)
        nests.append(Nest(nest, operands))
    return Nests(
        tuple(nests),
        tuple(tuple(int(extent) for extent in tensor.ty.shape) for tensor in shared),
        tuple(str(tensor.ty.dtype) for tensor in shared),
    )


def _function(
    function: PrimFunc, parameters: Sequence[Any], body: Any, intermediate: Sequence[str] = ()
) -> PrimFunc:
    """Return a nest of a function. It doesn't keep the function's name, nor attributes that describe its
    parameters by their positions.
    """
    kept = {name: value for name, value in function.attrs.items() if name in _KEPT_ATTRIBUTES}
    attributes = make_node("ir.DictAttrs", **kept, global_symbol=NEST, **{INTERMEDIATE: intermediate})
    return PrimFunc(parameters, body, function.ret_type, attrs=attributes)
