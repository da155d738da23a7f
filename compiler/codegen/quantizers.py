"""Round floats to integers in vectors, and clamp them by x86's saturating instructions.

TVM's vectorizer computes `T.nearbyint`, and with it the whole statement, lane by lane.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import Add, Cast, FloatImm, Max, Min, PrimFunc

from compiler.codegen.rewrite import map_body, rewrite_for_llvm
from compiler.target import is_x86
from compiler.tir_nodes import op_name

# The types that x86's instructions pack int32 into, with their limits.
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def quantize_in_vectors(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Round by LLVM's functions, which TVM vectorizes. On x86, convert the results of quantizers by an
    instruction that rounds, and others that saturate.

        B[i] = T.Cast("uint8", T.min(T.max(T.nearbyint(x), 0.0), 255.0))
    ->
        B[i] = T.Cast("uint8", T.max(T.min(llvm.lrint(T.min(x, 255.0)), 255), 0))

    That instruction turns NaN and floats below all integers into the lowest integer, so the lower bound of
    floats is left out. LLVM recognizes the outer bounds, and packs with saturation.
    """
    saturates = target.kind.name == "llvm" and is_x86(target)

    def rewrite(function: PrimFunc) -> PrimFunc:
        saturated = map_body(function, (Cast, _saturated)) if saturates else function
        return map_body(saturated, (Call, _by_llvm))

    return rewrite_for_llvm(module, target, rewrite)


def _by_llvm(call: Call) -> Any:
    if op_name(call) != "nearbyint" or str(call.ty.dtype) != "float32":
        return call
    return tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", call.args[0])


def _saturated(cast: Cast) -> Any:
    """Return the conversion of a quantizer's result by saturating instructions; other conversions
    unchanged."""
    limits, value = LIMITS.get(str(cast.ty.dtype)), cast.value
    if limits is None or str(value.ty.dtype) != "float32":
        return cast
    bounds: dict[type, float] = {}
    while isinstance(value, Min | Max) and isinstance(value.b, FloatImm) and type(value) not in bounds:
        bounds[type(value)] = float(value.b.value)
        value = value.a
    zero = float(value.b.value) if isinstance(value, Add) and isinstance(value.b, FloatImm) else 0.0
    rounded = value.a if isinstance(value, Add) else value
    if len(bounds) < 2 or not isinstance(rounded, Call) or op_name(rounded) != "nearbyint":
        return cast
    low, high = bounds[Max], bounds[Min]
    are_whole = all(number.is_integer() for number in (low, high, zero))
    if not are_whole or not limits[0] <= low <= high <= limits[1]:
        return cast
    clamped = Min(value if isinstance(value, Add) else rounded.args[0], tirx.const(high, "float32"))
    if low > limits[0]:
        clamped = Max(clamped, tirx.const(low, "float32"))
    whole = tirx.call_llvm_pure_intrin("int32", "llvm.lrint", clamped)
    lowest, highest = (tirx.const(limit, "int32") for limit in limits)
    return Cast(cast.ty, Max(Min(whole, highest), lowest))
