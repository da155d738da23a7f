"""Keep small buffers on the stack.

TVM allocates buffers of 1,024 bytes or more from a pool, at the start of every tile. LLVM doesn't always keep
such a buffer in registers: if a loop has branches, such as for padding, it stores the accumulators in every
iteration. LLVM promotes buffers on the stack to registers.
"""

from __future__ import annotations

import math

import tvm
from tvm.tirx import AllocBuffer, IntImm, PrimFunc

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs

# A core has at most 2 KiB of vector registers, and a thread megabytes of stack.
MAX_STACK_BYTES = 8192


def keep_on_stack(module: tvm.IRModule) -> tvm.IRModule:
    def rewrite(function: PrimFunc) -> PrimFunc:
        return map_body(function, (AllocBuffer, _mark))

    return rewrite_prim_funcs(module, rewrite)


def _mark(allocation: AllocBuffer) -> AllocBuffer:
    """Mark an allocation so that TVM leaves it to LLVM, if it is small."""
    shape = allocation.buffer.shape
    if not all(isinstance(extent, IntImm) for extent in shape):
        return allocation
    dtype = tvm.DataType(str(allocation.buffer.dtype))
    if math.prod(map(int, shape)) * -(-dtype.bits * dtype.lanes // 8) > MAX_STACK_BYTES:
        return allocation
    annotations = {**allocation.annotations, "disable_lower_builtin": IntImm("bool", 1)}
    return AllocBuffer(allocation.buffer, annotations, allocation.span)
