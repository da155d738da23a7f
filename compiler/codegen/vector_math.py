"""exp, log, tanh and their kin as plain arithmetic, which LLVM vectorizes; a call of libm runs lane by lane.

Errors against the true value are at most 2 ulp for exp, exp2, log and log2, 4 ulp for log10, log1p, sigmoid
and rsqrt, and 4 ulp or 1e-6 (whichever is more) for tanh and erf. Infinities and nan give what libm gives.
Results of exp and exp2 below float32's smallest normal number are 0: such numbers slow many CPUs down.
float16 goes through float32; float64 stays with libm, and so does bfloat16, which TVM widens only later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import Cast, Let, PrimFunc, Select

from compiler.codegen.rewrite import for_cpus
from compiler.reading.indices import find_all

Expr = Any
_Function = Callable[[Expr], Expr]

MANTISSA_BITS = 23
SMALLEST_NORMAL = 2.0**-126
LARGEST = (2.0 - 2.0**-23) * 2.0**127
# Added to a small number, it leaves the nearest integer in the lowest bits of the mantissa.
ROUNDER = 1.5 * 2.0**MANTISSA_BITS
# ln 2 in two parts, the first so short that its products with exponents are exact (Cephes, expf.c).
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
SQRT_HALF_BITS = 0x3F3504F3

# exp(r) = 1 + r + r² p(r) for |r| <= ln(2) / 2, highest power first (Cephes, expf.c).
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
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


# TVM's analyzer puts values in for names, so compiling takes exponentially long in the depth of `Let`s: a
# function of two functions stays a call (log1p of exp compiles in 0.03 s, tanh of that in 4 s).
MAX_LETS = 7


def expand_math(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Replace the calls of mathematical functions in all PrimFuncs where LLVM generates the code.

    B[i] = T.exp(A[i])  ->  B[i] = let x = A[i] in arithmetic on x
    """
    return for_cpus(module, target, _expand)


def _name(call: Call) -> str:
    # The same function is in one of two dialects, prim or tirx.
    return str(getattr(call.op, "name", "")).removeprefix("prim.").removeprefix("tirx.")


def _expand(function: PrimFunc) -> PrimFunc:
    return function.with_body(tvm_ffi.structural_map(function.body, (Call, _expand_call)))


def _expand_call(call: Call) -> Expr:
    name = _name(call)
    if name == "pow":
        return _power(call)
    function, dtype = FUNCTIONS.get(name), str(call.ty.dtype)
    if function is None or dtype not in ("float32", "float16"):
        return call
    if _too_deep(call.args[0]) or _has_bfloat16(call.args[0]):
        return call
    return function(call.args[0].astype("float32")).astype(dtype)


def _has_bfloat16(argument: Expr) -> bool:
    # TVM widens bfloat16 later, repeats what it rounds, and refuses or confuses a repeated `Let`.
    values = find_all(argument, TensorLoad, Cast)
    return any(str(value.ty.dtype) == "bfloat16" for value in values)


def _too_deep(argument: Expr) -> bool:
    lets: list[Expr] = []
    tvm_ffi.structural_walk(argument, [(Let, lets.append)])
    return len(lets) > MAX_LETS


def _exp(x: Expr) -> Expr:
    """2^n exp(r), where x = n ln 2 + r."""
    return _share(x, lambda x: _scaled_exp(x, 1 / math.log(2), _natural_rest, (-87.33654, 88.72283)))


def _exp2(x: Expr) -> Expr:
    return _share(x, lambda x: _scaled_exp(x, 1.0, _binary_rest, (-126.0, 127.99999)))


def _natural_rest(x: Expr, n: Expr) -> Expr:
    return x - n * _f32(LN2_HIGH) - n * _f32(LN2_LOW)


def _binary_rest(x: Expr, n: Expr) -> Expr:
    return (x - n) * _f32(math.log(2))


def _scaled_exp(
    x: Expr, exponents: float, rest: Callable[[Expr, Expr], Expr], normal: tuple[float, float]
) -> Expr:
    """2^n exp(rest(x, n)), n = round(x * exponents); `normal` bounds the x of normal results."""

    def shifted(rounded: Expr) -> Expr:
        power = _share(rest(x, rounded - _f32(ROUNDER)), _exp_near_zero)
        # Adding to the exponent's bits multiplies, also by 2^128, which is no float32 itself.
        exponent = _bits(rounded) << _i32(MANTISSA_BITS)
        return _float(_bits(power) + exponent)

    lowest, highest = normal
    inside = _share(x * _f32(exponents) + _f32(ROUNDER), shifted)
    overflow_or_nan = x * _f32(LARGEST)
    return Select(x <= _f32(highest), Select(x < _f32(lowest), _f32(0.0), inside), overflow_or_nan)


def _exp_near_zero(r: Expr) -> Expr:
    return _polynomial(EXP, r) * (r * r) + r + _f32(1.0)


def _log(x: Expr) -> Expr:
    return _logarithm(x, lambda e, f, tail: (f + (tail + e * _f32(LN2_LOW))) + e * _f32(LN2_HIGH))


def _log2(x: Expr) -> Expr:
    beyond_one = _f32(1 / math.log(2) - 1)
    return _logarithm(x, lambda e, f, tail: tail * beyond_one + f * beyond_one + tail + f + e)


def _logarithm(x: Expr, combine: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """combine(e, f, log(1 + f) - f), where x = 2^e (1 + f) and 1 + f is between sqrt(1/2) and sqrt(2)."""

    def normal(x: Expr) -> Expr:
        tiny = x < _f32(SMALLEST_NORMAL)
        offset = _bits(Select(tiny, x * _f32(2.0**MANTISSA_BITS), x)) - _i32(SQRT_HALF_BITS)
        return _share(offset, lambda offset: parts(offset, Select(tiny, _f32(-MANTISSA_BITS), _f32(0.0))))

    def parts(offset: Expr, correction: Expr) -> Expr:
        fraction = (offset & _i32((1 << MANTISSA_BITS) - 1)) + _i32(SQRT_HALF_BITS)
        exponent = (offset >> _i32(MANTISSA_BITS)).astype("float32") + correction
        return _share(_float(fraction) - _f32(1.0), lambda f: combine(exponent, f, _log_tail(f)))

    def anything(x: Expr) -> Expr:
        positive = Select(x <= _f32(LARGEST), normal(x), x)
        infinity_or_nan = Select(x == _f32(0.0), _f32(-math.inf), _f32(math.nan))
        return Select(x <= _f32(0.0), infinity_or_nan, positive)

    return _share(x, anything)


def _log_tail(f: Expr) -> Expr:
    return _polynomial(LOG, f) * f * (f * f) - _f32(0.5) * (f * f)


def _log10(x: Expr) -> Expr:
    return _log(x) * _f32(1 / math.log(10))


def _log1p(x: Expr) -> Expr:
    """log(1 + x), times what rounding 1 + x took away (Kahan)."""

    def corrected(x: Expr, u: Expr) -> Expr:
        lost = Select(u <= _f32(2.0**25), x / (u - _f32(1.0)), _f32(1.0))
        return Select(u == _f32(1.0), x, _log(u) * lost)

    return _share(x, lambda x: _share(x + _f32(1.0), lambda u: corrected(x, u)))


def _tanh(x: Expr) -> Expr:
    return _odd_rational(x, TANH_LIMIT, TANH_P, TANH_Q)


def _erf(x: Expr) -> Expr:
    return _odd_rational(x, ERF_LIMIT, ERF_P, ERF_Q)


def _odd_rational(x: Expr, limit: float, p: Sequence[float], q: Sequence[float]) -> Expr:
    """x p(x²) / q(x²) of x within the limits; rounding doesn't lead out of [-1, 1]."""

    def ratio(x: Expr) -> Expr:
        return _share(x * x, lambda square: x * _polynomial(p, square) / _polynomial(q, square))

    return _clamp(_share(_clamp(x, limit), ratio), 1.0)


def _clamp(x: Expr, limit: float) -> Expr:
    """Keeps nan, unlike minimum and maximum."""
    low, high = _f32(-limit), _f32(limit)
    return _share(x, lambda x: Select(x > high, high, Select(x < low, low, x)))


def _sigmoid(x: Expr) -> Expr:
    return _f32(1.0) / (_f32(1.0) + _exp(_f32(0.0) - x))


def _rsqrt(x: Expr) -> Expr:
    """TVM writes the same later, when its vectorizer has already split the loop into lanes."""
    return _f32(1.0) / tirx.sqrt(x)


def _power(call: Call) -> Expr:
    """Powers that LLVM doesn't take apart by itself but networks have; others stay calls."""
    base, exponent = call.args
    product = POWERS.get(getattr(exponent, "value", None))
    if product is None or str(call.ty.dtype) != "float32":
        return call
    return _share(base, product)


def _three_quarters(x: Expr) -> Expr:
    """Local response normalization's power; minus infinity to any broken power is infinity."""
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
    "log10": _log10,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
}


def _share(value: Expr, body: _Function) -> Expr:
    """The expression that `body` makes of a value computed once."""
    variable = tirx.Var("v", value.ty)
    return Let(variable, value, body(variable))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's rule, highest power first."""
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
