"""Round floats to integers in vectors, and clamp them by x86's saturating instructions.

TVM's vectorizer computes `T.nearbyint`, and with it the whole statement, lane by lane.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import Add, Cast, FloatImm, IntImm, Let, Max, Min, PrimFunc, Select

from compiler.codegen.rewrite import map_body, rewrite_for_llvm
from compiler.target import is_x86
from compiler.tir_nodes import op_name

# The types that x86's instructions pack int32 into, with their limits.
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def quantize_in_vectors(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Round by LLVM's functions, which TVM vectorizes. On x86, convert the results of quantizers by an
    instruction that rounds, and others that saturate.

        B[i] = T.Cast("uint8", T.min(T.max(T.nearbyint(x), 0.0), 255.0))
        C[i] = T.Cast("int16", T.max(T.Cast("int32", T.min(T.nearbyint(x), 134.0)), -121))
    ->
        B[i] = T.Cast("uint8", T.max(T.min(llvm.lrint(T.min(x, 255.0)), 255), 0))
        C[i] = T.max(T.Cast("int16", T.max(T.min(llvm.lrint(T.min(x, 134.0)), 32767), -32768)), -121)

    That instruction turns NaN and floats below all integers into the lowest integer, so floats need no lower
    bound. LLVM recognizes the bounds of the type, and packs with saturation. A lower bound above that comes
    after it.
    """
    saturates = target.kind.name == "llvm" and is_x86(target)

    def rewrite(function: PrimFunc) -> PrimFunc:
        if saturates:
            function = map_body(map_body(function, (Cast, _without_packing)), (Cast, _saturated))
        return map_body(function, (Call, _by_llvm))

    return rewrite_for_llvm(module, target, rewrite)


def _by_llvm(call: Call) -> Any:
    if op_name(call) != "nearbyint" or str(call.ty.dtype) != "float32":
        return call
    return tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", call.args[0])


def _without_packing(cast: Cast) -> Any:
    """Clamp floats as they are, if a quantizer's result is only converted to floats again. Like x86's
    `maxps`, the comparison returns the lower bound for NaN."""
    found = _bounded(cast.value) if str(cast.ty.dtype) == "float32" else None
    if found is None:
        return cast
    bounded, low = found
    variable, limit = tirx.Var("v", bounded.ty), tirx.const(low, "float32")
    return Let(variable, tirx.nearbyint(bounded), Select(variable > limit, variable, limit))


def _saturated(cast: Cast) -> Any:
    """Return the conversion of a quantizer's result by saturating instructions; other conversions
    unchanged."""
    found = _bounded(cast)
    if found is None:
        return cast
    dtype, (bounded, low) = str(cast.ty.dtype), found
    whole = tirx.call_llvm_pure_intrin("int32", "llvm.lrint", bounded)
    lowest, highest = (tirx.const(limit, "int32") for limit in LIMITS[dtype])
    packed = Cast(cast.ty, Max(Min(whole, highest), lowest))
    return Max(packed, tirx.const(low, dtype)) if low > LIMITS[dtype][0] else packed


def _bounded(cast: Any) -> tuple[Any, int] | None:
    """Return what a quantizer rounds, within its upper bound, and its lower bound; None if the expression
    doesn't convert a quantizer's result."""
    limits = LIMITS.get(str(cast.ty.dtype))
    if limits is None or not isinstance(cast, Cast):
        return None
    value = cast.value
    bounds: dict[type, float] = {}
    if isinstance(value, Max) and isinstance(value.b, IntImm) and isinstance(value.a, Cast):
        bounds[Max] = int(value.b.value)
        value = value.a.value
    while isinstance(value, Min | Max) and isinstance(value.b, FloatImm) and type(value) not in bounds:
        bounds[type(value)] = float(value.b.value)
        value = value.a
    zero = float(value.b.value) if isinstance(value, Add) and isinstance(value.b, FloatImm) else 0.0
    rounded = value.a if isinstance(value, Add) else value
    is_rounded = isinstance(rounded, Call) and op_name(rounded) == "nearbyint"
    if len(bounds) < 2 or not is_rounded or str(rounded.ty.dtype) != "float32":
        return None
    low, high = bounds[Max], bounds[Min]
    are_whole = all(float(number).is_integer() for number in (low, high, zero))
    if not are_whole or not limits[0] <= low <= high <= limits[1]:
        return None
    return Min(value if isinstance(value, Add) else rounded.args[0], tirx.const(high, "float32")), int(low)
