"""Sum partial results as a tree. In a loop, every addition waits for the previous one."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, For, PrimFunc

from compiler.codegen.rewrite import map_body, rewrite_for_llvm

REDUCERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)
# For other lengths LLVM generates worse code from the tree than from the loop (24 terms: four times as slow).
LENGTHS = (2, 4, 8, 16, 32, 64)


def add_as_trees(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Unroll the loops that reduce rows of partial results, if LLVM generates the code.

        for k in range(4):
            s[i] = s[i] + p[i, k]
    ->
        for k in range(1):
            s[i] = s[i] + ((p[i, 0] + p[i, 2]) + (p[i, 1] + p[i, 3]))
    """

    def rewrite(function: PrimFunc) -> PrimFunc:
        return map_body(function, (For, _as_tree))

    return rewrite_for_llvm(module, target, rewrite)


def _as_tree(loop: For) -> For:
    """Return a loop of one iteration that sums all terms. Return any other loop unchanged."""
    realize = loop.body
    if not isinstance(realize, SBlockRealize) or loop.kind != tirx.ForKind.SERIAL:
        return loop
    block, store = realize.block, realize.block.body
    values = _terms(loop, realize)
    if not values:
        return loop
    reducer = type(store.value)
    # Add the second half to the first, so that the additions of neighbouring values are vectors.
    while len(values) > 1:
        values = list(map(reducer, values, values[len(values) // 2 :]))
    body = BufferStore(store.buffer, reducer(store.value.a, values[0]), store.indices)
    unrolled = SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, annotations=block.annotations
    )
    once = SBlockRealize(realize.iter_values, realize.predicate, unrolled)
    return For(loop.loop_var, loop.min, tirx.const(1, loop.extent.ty.dtype), loop.kind, once)


def _terms(loop: For, realize: Any) -> list[Any]:
    """Return the elements of a row that the loop adds to one value; [] if it does anything else."""
    block = realize.block
    store = block.body
    if block.init is not None or not isinstance(store, BufferStore) or type(store.value) not in REDUCERS:
        return []
    own, term = store.value.a, store.value.b
    if not isinstance(own, TensorLoad) or not isinstance(term, TensorLoad):
        return []
    moved = [
        v for v, at in zip(block.iter_vars, realize.iter_values, strict=True) if at.same_as(loop.loop_var)
    ]
    # A loop over a spatial axis, such as a pooling's channels, stores a result in every iteration.
    reduces = len(moved) == 1 and moved[0].iter_type == tirx.IterVar.CommReduce
    is_row = reduces and own.source.same_as(store.buffer) and term.indices[-1].same_as(moved[0].var)
    extent = loop.extent
    if not is_row or not isinstance(extent, tirx.IntImm) or int(extent) not in LENGTHS:
        return []
    if int(loop.min) or int(term.source.ty.shape[-1]) != int(extent):
        return []
    row = list(term.indices)[:-1]
    return [tirx.BufferLoad(term.source, [*row, tirx.const(k, extent.ty.dtype)]) for k in range(int(extent))]
