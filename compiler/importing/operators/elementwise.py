"""Convert elementwise operators and reductions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from tvm import relax

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Array, Node, UnsupportedOperator, Value, numpy_dtype

# The terms of a determinant grow with the factorial of its rows.
MAX_DET = 4


def _clip(graph: Graph, node: Node) -> Value | None:
    """Convert a Clip of floats to binary operators. Unlike relax.clip and TVM's import, these take part in
    layout conversion.

        Clip(x, min=0, max=6)
    ->
        minimum(maximum(x, 0), 6)

    A Clip without constant bounds is left to TVM. A missing bound is the type's least or greatest number, so
    that infinities become finite.
    """
    data = node.input(0)
    if data.dtype not in ("float32", "float16", "bfloat16", "float64"):
        return None
    most = float(ml_dtypes.finfo(numpy_dtype(data.dtype)).max)  # type: ignore[no-untyped-call]
    bounds = [float(node.attributes.get("min", -most)), float(node.attributes.get("max", most))]
    for position, bound in enumerate(node.inputs[1:3]):
        if bound is not None and bound.constant is not None and bound.size == 1:
            bounds[position] = float(bound.constant.reshape(()))
        elif bound is not None and len(node.inputs) > 2 and None not in node.inputs:
            return None
        elif bound is not None:
            least, greatest = (np.array(end, numpy_dtype(data.dtype)) for end in (-most, most))
            if position == 0:
                return graph.op("Clip", data, bound, greatest)
            return graph.op("Clip", data, least, bound)
    low, high = bounds
    if math.isnan(low) or math.isnan(high):
        return None
    result = data.expr
    if low > -math.inf:
        result = relax.op.maximum(result, relax.const(low, data.dtype))
    if high < math.inf:
        result = relax.op.minimum(result, relax.const(high, data.dtype))
    return graph.emit(result)


def _pow(graph: Graph, node: Node) -> Value | None:
    """Raise to a power. TVM supports only powers of floats of one type."""
    data, exponent = node.input(0), node.input(1)
    if _is_integer(data):
        if _is_integer(exponent):
            return _integer_power(graph, data, exponent)
        power = graph.op("Pow", cast(graph, data, "float64"), cast(graph, exponent, "float64"))
        return cast(graph, power, data.dtype)
    if exponent.dtype == data.dtype:
        return None
    if _is_integer(exponent) and data.dtype == "float32":
        constant = exponent.constant
        if constant is None or np.any(constant.astype(np.float32).astype(np.float64) != constant):
            # The sign depends on whether the exponent is odd.
            power = graph.op("Pow", cast(graph, data, "float64"), cast(graph, exponent, "float64"))
            return cast(graph, power, data.dtype)
    return graph.op("Pow", data, cast(graph, exponent, data.dtype))


def _integer_power(graph: Graph, base: Value, exponent: Value) -> Value:
    """Multiply the squares that the bits of the exponent choose. Results that are too large lose high bits.

    Negative powers are 0 unless the base is 1 or -1. Powers of even bases to more than 63 are 0.
    """
    zero, one = (np.array(number, base.dtype) for number in (0, 1))
    constant = exponent.constant
    if constant is not None and constant.size == 1 and 0 < (number := int(constant.reshape(()))) <= 4:
        product = functools.reduce(lambda product, _: graph.op("Mul", product, base), range(number - 1), base)
        return graph.op(
            "Expand", product, np.array(np.broadcast_shapes(base.shape, exponent.shape), np.int64)
        )
    none, last = (np.array(number, exponent.dtype) for number in (0, 63))
    far = graph.op("Greater", exponent, last)
    if not exponent.dtype.startswith("uint"):
        far = graph.op("Or", far, graph.op("Less", exponent, none))
    bits = cast(graph, graph.op("Where", far, none, exponent), base.dtype)
    power: Value = graph.value(one)
    square = base
    for bit in range(6):
        is_set = graph.op("BitwiseAnd", bits, np.array(1 << bit, base.dtype))
        chosen = graph.op("Where", graph.op("Equal", is_set, zero), one, square)
        power = graph.op("Mul", power, chosen)
        square = graph.op("Mul", square, square) if bit < 5 else square
    is_odd = cast(graph, graph.op("BitwiseAnd", exponent, np.array(1, exponent.dtype)), "bool")
    of_minus_one = graph.op("Where", is_odd, -one, one)
    is_minus_one = graph.op("Equal", base, -one)
    other = cast(graph, graph.op("Equal", base, one), base.dtype)
    return graph.op("Where", far, graph.op("Where", is_minus_one, of_minus_one, other), power)


def _is_nan(graph: Graph, node: Node) -> Value | None:
    """Test for NaN. TVM doesn't support NaN of 8-bit floats."""
    data = node.input(0)
    return graph.op("IsNaN", cast(graph, data, "float32")) if data.dtype.startswith("float8") else None


def _shrink(graph: Graph, node: Node) -> Value:
    """x + bias below -lambd, x - bias above lambd, else 0. Integers are computed in floats, as in ONNX
    Runtime."""
    data = node.input(0)
    wide = cast(graph, data, "float32") if _is_integer(data) else data
    bias, lambd, zero = (
        np.array(number, numpy_dtype(wide.dtype))
        for number in (node.attributes.get("bias", 0.0), node.attributes.get("lambd", 0.5), 0)
    )
    above = graph.op("Where", graph.op("Greater", wide, lambd), graph.op("Sub", wide, bias), zero)
    result = graph.op("Where", graph.op("Less", wide, -lambd), graph.op("Add", wide, bias), above)
    return cast(graph, result, data.dtype)


def _is_inf(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    if data.dtype.startswith("float8"):
        data = cast(graph, data, "float32")
    found = graph.emit(relax.op.isinf(data.expr))
    zero = np.array(0, data.dtype)
    if not node.attributes.get("detect_negative", 1):
        found = graph.op("And", found, graph.op("Greater", data, zero))
    if not node.attributes.get("detect_positive", 1):
        found = graph.op("And", found, graph.op("Less", data, zero))
    return found


def _bit_shift(graph: Graph, node: Node) -> Value:
    """Shift. If the distance is negative, or at least the type's width, all bits are shifted out."""
    data, number = node.input(0), node.input(1)
    width = numpy_dtype(data.dtype).itemsize * 8
    zero = np.array(0, data.dtype)
    too_far = graph.op("GreaterOrEqual", number, np.array(width, data.dtype))
    if not data.dtype.startswith("uint"):
        too_far = graph.op("Or", too_far, graph.op("Less", number, zero))
    safe = graph.op("Where", too_far, zero, number)
    if node.attributes["direction"] == "LEFT":
        shifted, empty = relax.op.left_shift(data.expr, safe.expr), graph.value(zero)
    else:
        shifted, empty = relax.op.right_shift(data.expr, safe.expr), graph.value(zero)
        if not data.dtype.startswith("uint"):
            empty = graph.op("Where", graph.op("Less", data, zero), np.array(-1, data.dtype), zero)
    return graph.op("Where", too_far, empty, graph.emit(shifted))


def _mod(graph: Graph, node: Node) -> Value:
    """Return the remainder, with the sign of the divisor or, with fmod, of the dividend. For integers divided
    by zero it is zero, because such a division crashes the process."""
    data, divisor = node.input(0), node.input(1)
    zero = np.array(0, data.dtype)
    if _is_integer(data):
        safe = _never_zero(graph, divisor)
        operator = relax.op.mod if node.attributes.get("fmod", 0) else relax.op.floor_mod
        return graph.emit(operator(data.expr, safe.expr))
    rest = graph.emit(relax.op.mod(data.expr, divisor.expr))
    if node.attributes.get("fmod", 0):
        return rest
    differ = graph.op("Xor", graph.op("Less", rest, zero), graph.op("Less", divisor, zero))
    is_other = graph.op("And", differ, graph.op("Not", graph.op("Equal", rest, zero)))
    signed = graph.op("Where", is_other, graph.op("Add", rest, divisor), rest)
    # The remainder is zero, with the sign of the divisor.
    signed_zero = graph.op("Mul", zero, graph.op("Sign", divisor))
    return graph.op("Where", graph.op("Equal", rest, zero), signed_zero, signed)


def _div(graph: Graph, node: Node) -> Value | None:
    """Divide. Integer divisors of zero are replaced by one, because such a division crashes the process.

    TVM can't compile a division by the number 0.0, so floats are divided by a tensor of it.
    """
    data, divisor = node.input(0), node.input(1)
    zero = divisor.constant if divisor.rank == 0 < data.rank and not _is_integer(data) else None
    if zero is not None and not zero.any():
        return graph.op("Div", data, zero.reshape(1))
    if not _is_integer(data) or (divisor.constant is not None and divisor.constant.all()):
        return None
    return graph.emit(relax.op.divide(data.expr, _never_zero(graph, divisor).expr))


def _never_zero(graph: Graph, divisor: Value) -> Value:
    if divisor.constant is not None and divisor.constant.all():
        return divisor
    zero, one = (np.array(number, divisor.dtype) for number in (0, 1))
    return graph.op("Where", graph.op("Equal", divisor, zero), one, divisor)


def _is_integer(value: Value) -> bool:
    return numpy_dtype(value.dtype).kind in "iu"


def _softplus(graph: Graph, node: Node) -> Value:
    """log(1 + exp(x)), which neither overflows nor loses digits: max(x, 0) + log(1 + exp(-|x|))

    The logarithm is the series of 2 atanh(s), where s = u / (2 + u) is at most a third.
    """
    data = node.input(0)

    def number(value: float) -> Array:
        return np.array(value, data.dtype)

    u = graph.op("Exp", graph.op("Neg", graph.op("Abs", data)))
    s = graph.op("Div", u, graph.op("Add", u, number(2)))
    square = graph.op("Mul", s, s)
    terms = 6 if data.dtype != "float64" else 17
    series = graph.value(number(2 / (2 * terms - 1)))
    for k in reversed(range(terms - 1)):
        series = graph.op("Add", graph.op("Mul", series, square), number(2 / (2 * k + 1)))
    return graph.op("Add", graph.op("Relu", data), graph.op("Mul", s, series))


def _prelu(graph: Graph, node: Node) -> Value:
    """x, or slope x where x is negative; before opset 7 each channel has a slope."""
    data, slope = node.input(0), node.input(1)
    if node.opset < 7 and slope.rank == 1 and slope.size > 1:
        slope = graph.op("Reshape", slope, np.array([-1, *[1] * (data.rank - 2)]))
    negative = graph.op("Less", data, np.array(0, numpy_dtype(data.dtype)))
    return graph.op("Where", negative, graph.op("Mul", data, slope), data)


def _mish(graph: Graph, node: Node) -> Value:
    """x tanh(log(1 + exp(x))) = x n / (n + 2), where n = exp(x) (exp(x) + 2). From 20 on it is x."""
    data = node.input(0)
    two = np.array(2, data.dtype)
    power = graph.op("Exp", graph.op("Min", data, np.array(20, data.dtype)))
    n = graph.op("Mul", power, graph.op("Add", power, two))
    return graph.op("Mul", data, graph.op("Div", n, graph.op("Add", n, two)))


def _extreme(graph: Graph, node: Node) -> Value | None:
    """Reduce booleans as numbers."""
    data = node.input(0)
    if data.dtype != "bool":
        return None
    attributes: dict[str, Any] = dict(node.attributes)
    numbers = graph.op("Cast", data, to=onnx.TensorProto.UINT8)
    reduced = graph.op(node.kind, numbers, *node.inputs[1:], opset=node.opset, **attributes)
    return graph.op("Cast", reduced, to=onnx.TensorProto.BOOL)


def _celu(graph: Graph, node: Node) -> Value:
    """max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)"""
    data = node.input(0)
    alpha, zero, one = (np.array(number, data.dtype) for number in (node.attributes.get("alpha", 1.0), 0, 1))
    power = graph.op("Sub", graph.op("Exp", graph.op("Div", data, alpha)), one)
    negative = graph.op("Min", graph.op("Mul", power, alpha), zero)
    return graph.op("Add", graph.op("Max", data, zero), negative)


def _thresholded_relu(graph: Graph, node: Node) -> Value:
    """x if it is above the threshold, else 0, also for NaN and minus infinity."""
    data = node.input(0)
    threshold, zero = (np.array(number, data.dtype) for number in (node.attributes.get("alpha", 1.0), 0))
    return graph.op("Where", graph.op("Greater", data, threshold), data, zero)


def _hardmax(graph: Graph, node: Node) -> Value:
    """1 at the first position of the maximum, else 0.

    Before opset 13 a row is all axes from the given one on.
    """
    data = node.input(0)
    if node.opset < 13:
        axis = int(node.attributes.get("axis", 1)) % data.rank
        rows = graph.op("Reshape", data, np.array([math.prod(data.shape[:axis]), -1]))
        return graph.op("Reshape", graph.op("Hardmax", rows), np.array(data.shape))
    axis = int(node.attributes.get("axis", -1)) % data.rank
    every = np.arange(data.shape[axis]).reshape([-1 if k == axis else 1 for k in range(data.rank)])
    found = graph.op("Equal", graph.op("ArgMax", data, axis=axis, keepdims=1), every)
    return cast(graph, found, data.dtype)


def _dropout(graph: Graph, node: Node) -> list[Value]:
    """Return the data, because dropout has no effect outside of training."""
    data, training = node.input(0), node.optional(2)
    if node.attributes.get("is_test") == 0 or (
        training is not None and training.known("whether it trains").any()
    ):
        raise UnsupportedOperator("training isn't supported")
    return [data, graph.value(np.ones(data.shape, np.bool_))]


def _eye_like(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    number = node.attributes.get("dtype")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number) if number else numpy_dtype(data.dtype)
    return graph.value(np.eye(data.shape[0], data.shape[1], k=int(node.attributes.get("k", 0)), dtype=dtype))


def _cum_prod(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    axis = int(node.input(1).known("the axis").reshape(())) % data.rank
    backwards = np.arange(data.shape[axis])[::-1].copy()
    reverse = bool(node.attributes.get("reverse", 0))
    if reverse:
        data = graph.op("Gather", data, backwards, axis=axis)
    if node.attributes.get("exclusive", 0):
        ones = np.ones([1 if k == axis else extent for k, extent in enumerate(data.shape)], data.dtype)
        kept = graph.op("Slice", data, np.array([0]), np.array([-1]), np.array([axis]))
        data = graph.op("Concat", ones, kept, axis=axis)
    result = graph.emit(relax.op.cumprod(data.expr, axis, data.dtype))
    return graph.op("Gather", result, backwards, axis=axis) if reverse else result


def _lp_normalization(graph: Graph, node: Node) -> Value:
    """x / |x|, and zero where the norm is."""
    data = node.input(0)
    kind = "ReduceL1" if node.attributes.get("p", 2) == 1 else "ReduceL2"
    norm = graph.op(kind, data, np.array([node.attributes.get("axis", -1)]), keepdims=1)
    zero, one = (np.array(number, data.dtype) for number in (0, 1))
    safe = graph.op("Where", graph.op("Equal", norm, zero), one, norm)
    return graph.op("Div", data, safe)


def _det(graph: Graph, node: Node) -> Value:
    """Add up the products of one element of each row and each column, with the sign of their order."""
    data = node.input(0)
    size = data.shape[-1]
    if size > MAX_DET:
        raise UnsupportedOperator(f"only determinants of up to {MAX_DET} rows are supported")
    flat = graph.op("Reshape", data, np.array([*data.shape[:-2], size * size]))
    terms = []
    for order in itertools.permutations(range(size)):
        elements = [
            graph.op("Gather", flat, np.int64(place * size + column), axis=-1)
            for place, column in enumerate(order)
        ]
        term = functools.reduce(lambda product, element: graph.op("Mul", product, element), elements)
        is_odd = sum(a > b for a, b in itertools.combinations(order, 2)) % 2
        terms.append(graph.op("Neg", term) if is_odd else term)
    return graph.op("Sum", *terms)


def _binarizer(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    threshold = np.array(node.attributes.get("threshold", 0.0), data.dtype)
    return cast(graph, graph.op("Greater", data, threshold), data.dtype)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "BitShift"): _bit_shift,
    ("", "Celu"): _celu,
    ("", "Clip"): _clip,
    ("", "CumProd"): _cum_prod,
    ("", "Det"): _det,
    ("", "Div"): _div,
    ("", "Dropout"): _dropout,
    ("", "EyeLike"): _eye_like,
    ("", "Hardmax"): _hardmax,
    ("", "IsInf"): _is_inf,
    ("", "IsNaN"): _is_nan,
    ("", "LpNormalization"): _lp_normalization,
    ("", "Mish"): _mish,
    ("", "Mod"): _mod,
    ("", "Pow"): _pow,
    ("", "PRelu"): _prelu,
    ("", "ReduceMax"): _extreme,
    ("", "ReduceMin"): _extreme,
    ("", "Shrink"): _shrink,
    ("", "Softplus"): _softplus,
    ("", "ThresholdedRelu"): _thresholded_relu,
    ("ai.onnx.ml", "Binarizer"): _binarizer,
}
