"""Keep small buffers on the stack.

TVM takes every buffer of 1,024 bytes or more from a pool, each time a tile begins. LLVM doesn't always keep
such a buffer in registers: accumulators of a loop with branches, such as those of padding, are stored in
every iteration. Buffers on the stack become registers wherever they fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm.tirx import AllocBuffer, IntImm, PrimFunc
from tvm.tirx.compilation_pipeline import get_tir_pipeline, register_tir_pipeline

from compiler.codegen.rewrite import rewrite_prim_funcs

# The name of TVM's pipeline with this pass.
PIPELINE = "tunefarm"
# All of a core's registers are 2 KiB at most; a thread's stack has megabytes.
MOST_BYTES = 8192


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    lower, finish_host, finish_device = get_tir_pipeline("s_tir")

    def finish_on_stack() -> Callable[[tvm.IRModule], tvm.IRModule]:
        finish = finish_host()
        return lambda module: finish(_keep_on_stack(module))

    return lower, finish_on_stack, finish_device


def _keep_on_stack(module: tvm.IRModule) -> tvm.IRModule:
    def rewrite(function: PrimFunc) -> PrimFunc:
        return function.with_body(tvm_ffi.structural_map(function.body, (AllocBuffer, _mark)))

    return rewrite_prim_funcs(module, rewrite)


def _mark(allocation: AllocBuffer) -> AllocBuffer:
    """Mark an allocation so that TVM leaves it to LLVM, if it is small."""
    shape = allocation.buffer.shape
    if not all(isinstance(extent, IntImm) for extent in shape):
        return allocation
    dtype = tvm.DataType(str(allocation.buffer.dtype))
    if math.prod(map(int, shape)) * -(-dtype.bits * dtype.lanes // 8) > MOST_BYTES:
        return allocation
    annotations = {**allocation.annotations, "disable_lower_builtin": IntImm("bool", 1)}
    return AllocBuffer(allocation.buffer, annotations, allocation.span)


register_tir_pipeline(PIPELINE, _pipeline)
