"""Maxima and minima that propagate NaN, as ONNX Runtime, PyTorch and XLA have them.

TVM generates `a > b ? a : b`, which x86's `maxps a, b` computes: if either operand is NaN, the result is `b`.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import NE, Broadcast, FloatImm, Let, Max, Min, PrimFunc, Select

from compiler.codegen.fragments import KERNELS_START
from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.target import is_arm

_LLVM = {Max: "llvm.maximum", Min: "llvm.minimum"}
# The macros come after all declarations, so they change calls in kernels only.
_CUDA = """\
template <typename T> __device__ __forceinline__ T tunefarm_max(T a, T b) { return b > a || b != b ? b : a; }
template <typename T> __device__ __forceinline__ T tunefarm_min(T a, T b) { return b < a || b != b ? b : a; }
#define max(a, b) tunefarm_max(a, b)
#define min(a, b) tunefarm_min(a, b)
"""


def propagate_nan(module: tvm.IRModule) -> tvm.IRModule:
    """Make the maxima and minima of floats in host functions return NaN if either operand is NaN.

    Run this after TVM's simplifications, which replace `x == x` by true.

        max(x, 0)        # relu
        max(s, x)        # the step of a reduction
    ->
        max(0, x)        # one instruction, as before
    XX

    AArch64 has an instruction for it.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    target = function.attrs.get("target") if function.attrs else None
    replace = _by_instruction if target is not None and is_arm(target) else _by_operand_order
    return map_body(function, [((Max, Min), replace), (NE, _differs)])


def _differs(comparison: Any) -> Any:
    """Compare floats by `not a == b`, which is true for NaN. TVM translates `a != b` to an LLVM comparison
    that is false.
    """
    if "float" not in str(comparison.a.ty.dtype):
        return comparison
    return tirx.Not(tirx.EQ(comparison.a, comparison.b))


def _by_instruction(extreme: Any) -> Any:
    if not _is_float(extreme):
        return extreme
    return tirx.call_llvm_pure_intrin(str(extreme.ty.dtype), _LLVM[type(extreme)], extreme.a, extreme.b)


def _by_operand_order(extreme: Any) -> Any:
    if not _is_float(extreme):
        return extreme
    first, second = extreme.a, extreme.b
    if _is_number(first):
        return extreme
    if _is_number(second):
        return type(extreme)(second, first)
    # Compare the loaded value: that doesn't wait for the accumulator.
    tested, other = (second, first) if isinstance(second, TensorLoad) else (first, second)
    if isinstance(tested, TensorLoad | tirx.Var):
        return _chosen(type(extreme), tested, other)
    variable = tirx.Var("v", tested.ty)
    return Let(variable, tested, _chosen(type(extreme), variable, other))


def _chosen(kind: Any, tested: Any, other: Any) -> Any:
    return Select(tirx.EQ(tested, tested), kind(tested, other), tested)


def _is_float(expr: Any) -> bool:
    return "float" in str(expr.ty.dtype)


def _is_number(expr: Any) -> bool:
    """Return whether the expression is a constant other than NaN."""
    value = expr.value if isinstance(expr, Broadcast) else expr
    return isinstance(value, FloatImm) and not math.isnan(float(value.value))


def propagate_nan_in_kernels(source: str) -> str:
    """Make `max` and `min` in CUDA C propagate NaN. CUDA's own functions return the other operand."""
    return source.replace(KERNELS_START, _CUDA + KERNELS_START, 1)
