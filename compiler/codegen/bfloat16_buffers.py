"""Keep intermediate results of bfloat16 as their bits, so that dot products can read them.

TVM's BF16ComputeLegalize makes float32 of the buffers that a function allocates. It leaves uint16 alone.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import AllocBuffer, BufferStore, Cast, FloatImm, PrimFunc, Select

from compiler.codegen.bfloat16_instructions import calls_dot_products
from compiler.codegen.rewrite import rewrite_prim_funcs, with_body
from compiler.tir_nodes import find_all, op_name

# TVM's passes for CPUs up to the one before BF16ComputeLegalize. Only COMPACT can't run a second time.
COMPACT = "s_tir.CompactBufferAllocation"
_FLATTEN = (
    s_tir.transform.CanonicalizeLoop,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.StmtSimplify,
    s_tir.transform.AnnotateIrregularLoop,
    s_tir.transform.LowerOpaqueBlock,
    tirx.transform.FlattenBuffer,
)


def keep_bits(module: tvm.IRModule) -> tvm.IRModule:
    """Lower a module to flat buffers. Functions with dot products of bfloat16 allocate uint16 instead.

        padded = T.alloc_buffer((1152,), "bfloat16")
        padded[i] = T.if_then_else(i >= 96, a[i - 96], T.bfloat16(0))
    ->
        padded = T.alloc_buffer((1152,), "uint16")
        padded[i] = T.if_then_else(i >= 96, T.reinterpret("uint16", a[i - 96]), T.uint16(0))
    """
    passes = tvm.transform.Sequential([flatten() for flatten in _FLATTEN])
    return rewrite_prim_funcs(
        passes(module), lambda each: _rewrite(each) if calls_dot_products(each) else each
    )


def has_dot_products(module: tvm.IRModule) -> bool:
    return any(
        isinstance(each, PrimFunc) and calls_dot_products(each) for _, each in module.functions_items()
    )


def _rewrite(function: PrimFunc) -> PrimFunc:
    bits = {
        allocated.buffer: tirx.decl_buffer(
            allocated.buffer.ty.shape,
            "uint16",
            allocated.buffer.name,
            scope=allocated.buffer.scope(),
            layout=None,
        )
        for allocated in find_all(function.body, AllocBuffer)
        if str(allocated.buffer.ty.dtype) == "bfloat16"
    }

    def allocate(statement: AllocBuffer) -> AllocBuffer:
        buffer = bits.get(statement.buffer)
        return statement if buffer is None else AllocBuffer(buffer, statement.annotations)

    def store(statement: BufferStore) -> BufferStore:
        buffer = bits.get(statement.buffer)
        return (
            statement if buffer is None else BufferStore(buffer, _bits_of(statement.value), statement.indices)
        )

    def load(found: TensorLoad) -> Any:
        buffer = bits.get(found.source)
        return (
            found
            if buffer is None
            else tirx.reinterpret(found.ty.dtype, tirx.BufferLoad(buffer, found.indices))
        )

    def rewrite(call: Call) -> Any:
        match op_name(call):
            case "reinterpret":
                return _reinterpret_once(call)
            case "type_annotation" if str(call.ty.dtype) == "bfloat16":  # of a pointer
                return tirx.type_annotation("uint16")
            case "buffer_data" if call.args[0] in bits:
                return bits[call.args[0]].data
        return call

    body = tvm_ffi.structural_map(
        function.body,
        [(AllocBuffer, allocate), (BufferStore, store), (TensorLoad, load), (Call, rewrite)],
    )
    return with_body(function, body)


def _reinterpret_once(call: Call) -> Any:
    """Return reinterpret(x) for reinterpret(reinterpret(x))."""
    (inner,) = call.args
    is_twice = isinstance(inner, Call) and op_name(inner) == "reinterpret"
    return tirx.reinterpret(call.ty.dtype, inner.args[0]) if is_twice else call


def _bits_of(value: Any) -> Any:
    """Return the bits of a bfloat16 as uint16."""
    match value:
        case FloatImm():
            bits = np.array(float(value.value), ml_dtypes.bfloat16).view(np.uint16)
            return tirx.const(int(bits), "uint16")
        case Select():
            return Select(value.condition, _bits_of(value.true_value), _bits_of(value.false_value))
        case TensorLoad():
            return tirx.reinterpret("uint16", value)
        case Call() if op_name(value) == "reinterpret":
            return tirx.reinterpret("uint16", value.args[0])
        case Call() if op_name(value) == "if_then_else":
            condition, *values = value.args
            return tirx.if_then_else(condition, *map(_bits_of, values))
    is_rounded = isinstance(value, Cast) and str(value.value.ty.dtype) == "float32"
    return _round(value.value if is_rounded else value.astype("float32"))


def _round(value: Any) -> Any:
    """Return the bits of a float32 rounded to bfloat16, as TVM computes them (`codegen.broadcasts`)."""
    bits = tirx.reinterpret("uint32", value)
    upper, odd, half = (tirx.const(number, "uint32") for number in (16, 1, 0x7FFF))
    return ((bits + ((bits >> upper) & odd) + half) >> upper).astype("uint16")
