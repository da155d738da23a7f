"""Compute exp, log, tanh and similar functions with arithmetic that LLVM vectorizes. libm computes lane by
lane.

Errors against the true value are at most 2 ulp for exp, exp2, log and log2, and 4 ulp for log10, log1p,
sigmoid and rsqrt. For tanh and erf they are at most 4 ulp or 1e-6, whichever is more. Infinities and NaN give
the same results as libm. exp and exp2 return 0 instead of subnormal numbers, which slow many CPUs down.
float16 is computed in float32. float64 and bfloat16 stay with libm: TVM widens bfloat16 only later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import Cast, Div, FloatImm, Let, PrimFunc, Select

from compiler.codegen.rewrite import map_body, rewrite_for_llvm
from compiler.tir_nodes import find_all

Expr = Any
_Function = Callable[[Expr], Expr]

MANTISSA_BITS = 23
EXPONENT_BIAS = 127
SMALLEST_NORMAL = 2.0**-126
LARGEST = (2.0 - 2.0**-23) * 2.0**127
# Adding this to a small number leaves the nearest integer in the lowest bits of the mantissa.
ROUNDER = 1.5 * 2.0**MANTISSA_BITS
# ln 2 in two parts. The first has so few bits that its products with exponents are exact (Cephes, expf.c).
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
SQRT_HALF_BITS = 0x3F3504F3

# exp(r) = 1 + r + r² p(r) for |r| <= ln(2) / 2, highest power first (Cephes, expf.c).
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# exp(-r) = 1 - r + r² p(r) for |r| <= ln(2) / 2, for sigmoid, highest power first. Fitted like those of tanh.
SIGMOID_EXP = (1.3814540e-3, -8.3687451e-3, 4.1668390e-2, -1.6666520e-1, 4.9999993e-1)
# Beyond the first, exp(-x) is 2^128, which is no float32. Beyond the other, it is less than half an ulp of 1.
SIGMOID_LOW, SIGMOID_HIGH = -89.0, 88.0
# log(1 + f) = f - f² / 2 + f³ p(f) for sqrt(1/2) <= 1 + f < sqrt(2) (Cephes, logf.c).
LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
# tanh(x) and erf(x) = x p(x²) / q(x²) up to the limit, beyond which they round to 1. Fitted for the smallest
# relative error: tests/unit/compiler/test_vector_math.py does it again and compares.
TANH_LIMIT = 9.0
TANH_P = (1.3355091255107254e-08, 2.0609428247553296e-05, 0.003495610784739256, 0.13381044566631317, 1.0)
TANH_Q = (7.776744723742013e-07, 0.0003285670536570251, 0.02587706968188286, 0.46714359521865845, 1.0)
ERF_LIMIT = 3.925
ERF_P = (
    2.0460522591747576e-06,
    0.0002848406438715756,
    0.0037724203430116177,
    0.052768904715776443,
    0.1905907243490219,
    1.1283791065216064,
)
ERF_Q = (
    3.804787775152363e-05,
    0.0011638262076303363,
    0.014982939697802067,
    0.11418147385120392,
    0.5022393465042114,
    1.0,
)

# TVM's analyzer substitutes the values of `Let`s, which takes time exponential in their depth. log1p(exp(x))
# compiles in 0.03 s, tanh(log1p(exp(x))) in 4 s. So the third of three nested functions stays a call.
MAX_LETS = 7


def expand_math(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Replace calls of mathematical functions in all PrimFuncs, where LLVM generates the code.

        B[i] = T.sigmoid(A[i])
    ->
        B[i] = let v = A[i] in 1 / (1 + 2^n * (1 + r + r^2 * p(r)))     # -v = n ln 2 + r
    """

    def rewrite(function: PrimFunc) -> PrimFunc:
        return map_body(function, (Call, _expand_call))

    return rewrite_for_llvm(module, target, rewrite)


def _expand_call(call: Call) -> Expr:
    # A function may belong to the dialect prim or to tirx.
    name = str(getattr(call.op, "name", "")).removeprefix("prim.").removeprefix("tirx.")
    if name == "pow":
        return _power(call)
    function = FUNCTIONS.get(name)
    if function is None:
        return call
    dtype = str(call.ty.dtype)
    if dtype not in ("float32", "float16"):
        return call
    lets: list[Expr] = []
    tvm_ffi.structural_walk(call.args[0], [(Let, lets.append)])
    if len(lets) > MAX_LETS:
        return call
    # TVM widens bfloat16 later and duplicates the rounded expressions. A duplicated `Let` makes it fail or
    # miscompile.
    if any(str(value.ty.dtype) == "bfloat16" for value in find_all(call.args[0], TensorLoad, Cast)):
        return call
    return function(call.args[0].astype("float32")).astype(dtype)


def _exp(x: Expr) -> Expr:
    """2^n exp(r), where x = n ln 2 + r."""

    def remainder(x: Expr, n: Expr) -> Expr:
        return x - n * _f32(LN2_HIGH) - n * _f32(LN2_LOW)

    return _share(x, lambda x: _scaled_exp(x, 1 / math.log(2), remainder, (-87.33654, 88.72283)))


def _exp2(x: Expr) -> Expr:
    """2^n exp(r), where x = n + r / ln 2."""

    def remainder(x: Expr, n: Expr) -> Expr:
        return (x - n) * _f32(math.log(2))

    return _share(x, lambda x: _scaled_exp(x, 1.0, remainder, (-126.0, 127.99999)))


def _scaled_exp(
    x: Expr, scale: float, remainder: Callable[[Expr, Expr], Expr], normal: tuple[float, float]
) -> Expr:
    """2^n exp(remainder(x, n)) where n = round(x * scale). Results are normal for x within `normal`."""

    def shifted(rounded: Expr) -> Expr:
        power = _share(
            remainder(x, rounded - _f32(ROUNDER)),
            lambda r: _polynomial(EXP, r) * (r * r) + r + _f32(1.0),
        )
        # Adding n to the bits of the exponent multiplies by 2^n, also for 2^128, which is no float32.
        exponent = _bits(rounded) << _i32(MANTISSA_BITS)
        return _float(_bits(power) + exponent)

    lowest, highest = normal
    inside = _share(x * _f32(scale) + _f32(ROUNDER), shifted)
    overflow_or_nan = x * _f32(LARGEST)
    return Select(x <= _f32(highest), Select(x < _f32(lowest), _f32(0.0), inside), overflow_or_nan)


def _sigmoid(x: Expr) -> Expr:
    """1 / (1 + 2^n exp(-r)), where -x = n ln 2 - r. The 2^128 of small x becomes infinity, and its inverse 0.

    A shift makes the bits of 2^n from the bits of the rounded n. 2^n is a factor, so NaN stays NaN.
    """
    rounder = _f32(ROUNDER + EXPONENT_BIAS)

    def inverse(x: Expr, rounded: Expr) -> Expr:
        n = rounded - rounder
        scale = _float(_bits(rounded) << _i32(MANTISSA_BITS))
        return _share(
            x + n * _f32(LN2_HIGH) + n * _f32(LN2_LOW),
            lambda r: _f32(1.0) / (_f32(1.0) + _polynomial((*SIGMOID_EXP, -1.0, 1.0), r) * scale),
        )

    def inside(x: Expr) -> Expr:
        return _share(x * _f32(-1 / math.log(2)) + rounder, lambda rounded: inverse(x, rounded))

    return _share(_clamp(x, SIGMOID_LOW, SIGMOID_HIGH), inside)


def _log(x: Expr) -> Expr:
    return _logarithm(x, lambda e, f, tail: (f + (tail + e * _f32(LN2_LOW))) + e * _f32(LN2_HIGH))


def _log2(x: Expr) -> Expr:
    beyond_one = _f32(1 / math.log(2) - 1)
    return _logarithm(x, lambda e, f, tail: tail * beyond_one + f * beyond_one + tail + f + e)


def _logarithm(x: Expr, combine: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """combine(e, f, log(1 + f) - f) where x = 2^e (1 + f) and 1 + f is between sqrt(1/2) and sqrt(2)."""

    def tail(f: Expr) -> Expr:
        return _polynomial(LOG, f) * f * (f * f) - _f32(0.5) * (f * f)

    def normal(x: Expr) -> Expr:
        tiny = x < _f32(SMALLEST_NORMAL)
        offset = _bits(Select(tiny, x * _f32(2.0**MANTISSA_BITS), x)) - _i32(SQRT_HALF_BITS)
        return _share(offset, lambda offset: parts(offset, Select(tiny, _f32(-MANTISSA_BITS), _f32(0.0))))

    def parts(offset: Expr, correction: Expr) -> Expr:
        fraction = (offset & _i32((1 << MANTISSA_BITS) - 1)) + _i32(SQRT_HALF_BITS)
        exponent = (offset >> _i32(MANTISSA_BITS)).astype("float32") + correction
        return _share(_float(fraction) - _f32(1.0), lambda f: combine(exponent, f, tail(f)))

    def anything(x: Expr) -> Expr:
        positive = Select(x <= _f32(LARGEST), normal(x), x)
        infinity_or_nan = Select(x == _f32(0.0), _f32(-math.inf), _f32(math.nan))
        return Select(x <= _f32(0.0), infinity_or_nan, positive)

    return _share(x, anything)


def _log1p(x: Expr) -> Expr:
    """log(u) * x / (u - 1) where u = 1 + x, which corrects the rounding of u (Kahan)."""

    def corrected(x: Expr, u: Expr) -> Expr:
        lost = Select(u <= _f32(2.0**25), x / (u - _f32(1.0)), _f32(1.0))
        return Select(u == _f32(1.0), x, _log(u) * lost)

    return _share(x, lambda x: _share(x + _f32(1.0), lambda u: corrected(x, u)))


def _odd_rational(x: Expr, limit: float, p: Sequence[float], q: Sequence[float]) -> Expr:
    """x p(x²) / q(x²) of x clamped to the limit, clamped to [-1, 1], which rounding might leave.

    A quotient x = y / c becomes y * (1 / c), because a second division would take longer than all else. The
    relative error of tanh and erf is at most that of x.
    """

    def ratio(x: Expr) -> Expr:
        return _share(x * x, lambda square: x * _polynomial(p, square) / _polynomial(q, square))

    if isinstance(x, Div) and isinstance(x.b, FloatImm) and _has_inverse(x.b.value):
        x = x.a * _f32(1.0 / x.b.value)
    return _clamp(_share(_clamp(x, -limit, limit), ratio), -1.0, 1.0)


def _has_inverse(value: float) -> bool:
    """Return whether a number and its inverse are normal numbers of float32."""
    return SMALLEST_NORMAL <= abs(value) <= 1.0 / SMALLEST_NORMAL


def _clamp(x: Expr, lowest: float, highest: float) -> Expr:
    """Clamp to [lowest, highest]. Unlike minimum and maximum, this keeps NaN."""
    low, high = _f32(lowest), _f32(highest)

    def clamped(x: Expr) -> Expr:
        # Each Select is one instruction of x86, because it compares what it returns.
        raised = Select(x < low, low, x)
        return Select(raised > high, high, raised)

    return _share(x, clamped)


def _rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x). TVM expands rsqrt only after its vectorizer has split the loop into lanes."""
    return _f32(1.0) / tirx.sqrt(x)


def _power(call: Call) -> Expr:
    """Expand the exponents that networks use and that LLVM doesn't expand by itself. Others stay calls.

        T.pow(A[i], 3.0)
    ->
        let v = A[i] in v * v * v
    """
    base, exponent = call.args
    product = POWERS.get(getattr(exponent, "value", None))
    if product is None or str(call.ty.dtype) != "float32":
        return call
    return _share(base, product)


def _three_quarters(x: Expr) -> Expr:
    """x^0.75, as in local response normalization. pow(-inf, 0.75) is infinity."""
    power = _share(tirx.sqrt(x), lambda root: root * tirx.sqrt(root))
    return Select(x == _f32(-math.inf), _f32(math.inf), power)


POWERS: dict[object, _Function] = {
    3.0: lambda x: x * x * x,
    4.0: lambda x: _share(x * x, lambda square: square * square),
    0.75: _three_quarters,
}
FUNCTIONS: dict[str, _Function] = {
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log2": _log2,
    "log10": lambda x: _log(x) * _f32(1 / math.log(10)),
    "log1p": _log1p,
    "tanh": lambda x: _odd_rational(x, TANH_LIMIT, TANH_P, TANH_Q),
    "erf": lambda x: _odd_rational(x, ERF_LIMIT, ERF_P, ERF_Q),
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
}


def _share(value: Expr, body: _Function) -> Expr:
    """Return `let v = value in body(v)`, which computes the value once."""
    variable = tirx.Var("v", value.ty)
    return Let(variable, value, body(variable))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    result = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _f32(coefficient)
    return result


def _bits(value: Expr) -> Expr:
    return tirx.reinterpret("int32", value)


def _float(bits: Expr) -> Expr:
    return tirx.reinterpret("float32", bits)


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")
