"""Gather short vectors from elements that lie apart.

LLVM loads each lane of such a vector by itself. It then searches the lanes for shorter vectors, in time that
grows with the third power of their number. A nest with 55 vectors of 64 lanes takes 31 s to compile, with
vectors of 16 lanes 1 s, and runs as fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import For, ForKind, IntImm, PrimFunc, Var

from compiler.codegen.rewrite import map_body, rewrite_for_llvm
from compiler.tir_nodes import find_all, step_of

# A register of AVX-512 has 16 lanes of float32. Vectors of fewer than MIN_LANES gain too little.
MIN_LANES, MAX_LANES = 4, 16


def gather_short_vectors(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Split vectorized loops of scheduled functions that load elements which lie apart.

        for i in T.vectorized(64):
            B[i] = A[i, k]
    ->
        for i_0 in range(4):
            for i_1 in T.vectorized(16):
                B[i_0 * 16 + i_1] = A[i_0 * 16 + i_1, k]

    The vectors have as many lanes as possible, from MIN_LANES to MAX_LANES. If no such number divides the
    loop, it stays.
    """
    return rewrite_for_llvm(module, target, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    return map_body(function, (For, _split))


def _split(loop: For) -> For:
    if loop.kind != ForKind.VECTORIZED or not isinstance(loop.extent, IntImm):
        return loop
    extent = int(loop.extent)
    lanes = next((each for each in range(MAX_LANES, MIN_LANES - 1, -1) if extent % each == 0), extent)
    if extent <= MAX_LANES or lanes == extent or not _gathers(loop):
        return loop
    variable = loop.loop_var
    dtype = variable.ty.dtype
    outer, inner = (Var(f"{variable.name}_{part}", dtype) for part in range(2))
    index = loop.min + outer * tirx.const(lanes, dtype) + inner
    body = tvm_ffi.structural_map(loop.body, (Var, lambda each: index if each.same_as(variable) else each))
    zero = tirx.const(0, dtype)
    vector = For(inner, zero, tirx.const(lanes, dtype), ForKind.VECTORIZED, body)
    return For(outer, zero, tirx.const(extent // lanes, dtype), ForKind.SERIAL, vector)


def _gathers(loop: For) -> bool:
    """Return whether the lanes of a vectorized loop load elements that lie apart."""
    analyzer = Analyzer()
    # A block's axes have the loop's variable in their bindings.
    bindings: dict[Any, Any] = {}
    for realize in find_all(loop.body, SBlockRealize):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            bindings[axis.var] = value

    def bound(index: Any) -> Any:
        return tvm_ffi.structural_map(index, (Var, lambda each: bindings.get(each, each)))

    return any(
        step_of(_address(load.source, map(bound, load.indices)), loop.loop_var, analyzer) not in (0, 1)
        for load in find_all(loop.body, TensorLoad)
    )


def _address(buffer: Any, indices: Iterable[Any]) -> Any:
    """Return the position of an element in a buffer whose rows follow each other."""
    address: Any = 0
    for extent, index in zip(buffer.ty.shape, indices, strict=True):
        address = address * extent + index
    return address
