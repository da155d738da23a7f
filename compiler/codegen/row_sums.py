"""Partial results added up as a tree: loops that add them one by one wait for every addition in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, For, PrimFunc

from compiler.codegen.rewrite import for_cpus

REDUCERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)
# Of others LLVM makes worse code than of the loop (24 terms: four times as slow).
LENGTHS = (2, 4, 8, 16, 32, 64)


def add_as_trees(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Unroll the loops that reduce rows of partial results, where LLVM generates the code.

    for k in range(4): s = s + p[k]  ->  s = s + ((p[0] + p[2]) + (p[1] + p[3]))
    """
    return for_cpus(module, target, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    return function.with_body(tvm_ffi.structural_map(function.body, (For, _as_tree)))


def _as_tree(loop: For) -> For:
    """The loop with one iteration that adds up everything; any other loop as it is."""
    realize = loop.body
    if not isinstance(realize, SBlockRealize) or loop.kind != tirx.ForKind.SERIAL:
        return loop
    block, store = realize.block, realize.block.body
    terms = _terms(loop, realize)
    if not terms:
        return loop
    body = BufferStore(
        store.buffer, type(store.value)(store.value.a, _tree(type(store.value), terms)), store.indices
    )
    whole = SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, annotations=block.annotations
    )
    once = SBlockRealize(realize.iter_values, realize.predicate, whole)
    return For(loop.loop_var, loop.min, tirx.const(1, loop.extent.ty.dtype), loop.kind, once)


def _terms(loop: For, realize: Any) -> list[Any]:
    """The elements of a row that the loop adds to one value; empty where it does anything else."""
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
    # A spatial axis has a result for each of its elements: a pooling's loop over channels.
    reduces = len(moved) == 1 and moved[0].iter_type == tirx.IterVar.CommReduce
    is_row = reduces and own.source.same_as(store.buffer) and term.indices[-1].same_as(moved[0].var)
    extent = loop.extent
    if not is_row or not isinstance(extent, tirx.IntImm) or int(extent) not in LENGTHS:
        return []
    if int(loop.min) or int(term.source.ty.shape[-1]) != int(extent):
        return []
    row = list(term.indices)[:-1]
    return [tirx.BufferLoad(term.source, [*row, tirx.const(k, extent.ty.dtype)]) for k in range(int(extent))]


def _tree(reducer: Any, terms: Sequence[Any]) -> Any:
    """Halves on halves, so that what lies side by side is added side by side."""
    values = list(terms)
    while len(values) > 1:
        values = list(map(reducer, values, values[len(values) // 2 :]))
    return values[0]
