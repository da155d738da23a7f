"""Prefetch the operands that loops stream.

A processor prefetches by itself, but only to the end of a page. The first rows of the next page come from
memory while a core waits. The weights of a network aren't in a cache when their layer begins.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm, TensorLoad
from tvm.tirx import (
    AllocBuffer,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IntImm,
    PrimFunc,
    Ramp,
    SeqStmt,
    Var,
)

from compiler.codegen.rewrite import rewrite_prim_funcs

# How far ahead of a load its address is prefetched: what a core multiplies while memory answers.
AHEAD_BYTES = 8192
LINE_BYTES = 64
# Smaller operands stay in the first cache.
LEAST_BYTES = 32768

_NAME = "tunefarm_prefetch"
# LLVM believes that its prefetch may write into accumulators, and then stores them in every iteration. A call
# that is declared to touch only what the program can't reach lets it keep them in registers.
_FUNCTION = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr hidden i32 @{_NAME}(ptr %address) alwaysinline nounwind {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 3, i32 1) memory(inaccessiblemem: readwrite)
  ret i32 0
}}
"""


def prefetch_operands(module: tvm.IRModule) -> tvm.IRModule:
    """Prefetch the vectors of large parameters that loops add up, in the innermost loop moving along them.

        for k in range(512):
            c[0:16] = c[0:16] + broadcast(a[k]) * b[k * 16 : k * 16 + 16]
    ->
        for k in range(512):
            c[0:16] = c[0:16] + broadcast(a[k]) * b[k * 16 : k * 16 + 16]
            prefetch(b[k * 16 + 2048])

    What is packed ahead of time is read in the order of its addresses, so these rows are the next ones.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    own: list[Any] = []
    loops: list[For] = []
    stores: list[BufferStore] = []
    tvm_ffi.structural_walk(
        function.body,
        [
            (AllocBuffer, lambda each: own.append(each.buffer)),
            (For, loops.append),  # inner ones come first
            (BufferStore, stores.append),
        ],
    )
    rows: defaultdict[int, list[Any]] = defaultdict(list)
    for load in _streamed(stores, own):
        used: list[Any] = []
        tvm_ffi.structural_walk(load.indices[-1], [(Var, used.append)])
        innermost = next((at for at, loop in enumerate(loops) if _has(used, loop.loop_var)), None)
        if innermost is not None:
            rows[innermost] += _rows(load)
    if not rows:
        return function

    def prefetch(loop: For) -> For:
        at = next(at for at, each in enumerate(loops) if each.loop_var.same_as(loop.loop_var))
        if at not in rows:
            return loop
        calls = [Evaluate(tirx.call_extern("int32", _NAME, tirx.address_of(row))) for row in rows[at]]
        # At the end of the body, where what it binds is known.
        statements = loop.body.seq if isinstance(loop.body, SeqStmt) else [loop.body]
        body = SeqStmt([*statements, *calls])
        return For(
            loop.loop_var,
            loop.min,
            loop.extent,
            loop.kind,
            body,
            loop.thread_binding,
            loop.annotations,
            loop.step,
        )

    body = tvm_ffi.structural_map(function.body, (For, prefetch))
    return function.with_body(AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_FUNCTION), body))


def _streamed(stores: list[BufferStore], own: list[Any]) -> Iterable[TensorLoad]:
    """Return the different loads of vectors, from large buffers other than the function's `own`, that are
    added to what is stored."""
    found = {}
    for store in stores:
        loads: list[TensorLoad] = []
        tvm_ffi.structural_walk(store.value, [(TensorLoad, loads.append)])
        if any(load.source.same_as(store.buffer) for load in loads):
            for load in loads:
                if _is_vector(load) and _bytes(load) >= LEAST_BYTES and not _has(own, load.source):
                    found[tvm_ffi.StructuralKey(load)] = load
    return found.values()


def _has(variables: list[Any], variable: Any) -> bool:
    return any(variable.same_as(each) for each in variables)


def _is_vector(load: TensorLoad) -> bool:
    at = load.indices[-1]
    return isinstance(at, Ramp) and isinstance(at.stride, IntImm) and int(at.stride) == 1


def _rows(load: TensorLoad) -> Iterator[Any]:
    """Yield the first element of each cache line that the same load reads AHEAD_BYTES later."""
    *outer, last = load.indices
    item = _item_bytes(load)
    for offset in range(0, int(last.lanes) * item, LINE_BYTES):
        ahead = tirx.const((AHEAD_BYTES + offset) // item, last.base.ty.dtype)
        yield tirx.BufferLoad(load.source, [*outer, last.base + ahead])


def _bytes(load: TensorLoad) -> int:
    """Return the bytes of a load's buffer, none if its shape isn't known."""
    shape = load.source.ty.shape
    if not all(isinstance(extent, IntImm) for extent in shape):
        return 0
    return math.prod(map(int, shape)) * _item_bytes(load)


def _item_bytes(load: TensorLoad) -> int:
    return -(-tvm.DataType(str(load.source.ty.dtype)).bits // 8)
