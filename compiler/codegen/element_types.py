"""Compute operations that TVM's code generators lack for an element type in a wider type."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import EQ, GE, GT, LE, LT, NE, PrimFunc

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs

_COMPARISONS = (EQ, NE, LT, LE, GT, GE)
_TRIGONOMETRY = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
)
_OTHERS = ("copysign", "erf", "exp", "exp10", "exp2", "fmod", "log", "log10", "log1p", "log2", "pow", "tanh")
_FUNCTIONS = frozenset((*_TRIGONOMETRY, *_OTHERS))
# TVM's own formulas for these functions return zero for small arguments.
_LIBM = {
    **{(name, "float32"): f"{name}f" for name in ("atanh", "tanh")},
    **{(name, "float64"): name for name in ("atanh", "tanh")},
}


def compute_in_known_types(module: tvm.IRModule) -> tvm.IRModule:
    """Compare booleans as bytes, and compute functions of float16 in float32. If LLVM generates the code,
    call libm for the functions that TVM expands into inaccurate formulas.

        T.sinh(x) == y                                   # x, y: float16
    ->
        T.Cast("float16", T.sinh(T.Cast("float32", x))) == y
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    target = function.attrs.get("target") if function.attrs else None
    compute = _by_libm if target is not None and target.kind.name == "llvm" else _widened
    return map_body(function, [(_COMPARISONS, _compare_bytes), (Call, compute)])


def _compare_bytes(comparison: Any) -> Any:
    if _dtype(comparison.a) != "bool":
        return comparison
    return type(comparison)(comparison.a.astype("uint8"), comparison.b.astype("uint8"))


def _by_libm(call: Call) -> Any:
    name = _LIBM.get((_name(call), _dtype(call)))
    return _widened(call) if name is None else tirx.call_pure_extern(_dtype(call), name, *call.args)


def _widened(call: Call) -> Any:
    if _dtype(call) != "float16" or _name(call) not in _FUNCTIONS:
        return call
    arguments = [argument.astype("float32") for argument in call.args]
    wide = Call(call.op, arguments, ret_ty=tvm.ir.PrimType("float32"))
    return wide.astype("float16")


def _dtype(expr: Any) -> str:
    """Return an expression's element type; "" for a handle."""
    return str(getattr(expr.ty, "dtype", ""))


def _name(call: Call) -> str:
    """Return the name of the called function without its dialect (prim or tirx)."""
    return str(getattr(call.op, "name", "")).removeprefix("prim.").removeprefix("tirx.")
