"""Operations that compute each element of their result from one of each operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from tvm import relax

from compiler.constants.fold import constant
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.spec import Shape
from compiler.importing.stablehlo.attributes import Array, ints, mlir, tensor_type
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.values import UnsupportedOperator, numpy_dtype


def _elementwise(on_arrays: Callable[..., Any], on_exprs: Callable[..., Any]) -> Converter:
    def convert(importer: Importer, op: Any) -> Tensor:
        shape, dtype = tensor_type(op.results[0].type)
        return importer.elementwise(importer.operands(op), shape, on_arrays, on_exprs, dtype)

    return convert


def _by_type(
    on_bools: tuple[Callable[..., Any], Callable[..., Any]],
    on_numbers: tuple[Callable[..., Any], Callable[..., Any]],
) -> Converter:
    """Return the converter of an operation that is another one for booleans."""
    bools, numbers = _elementwise(*on_bools), _elementwise(*on_numbers)

    def convert(importer: Importer, op: Any) -> Any:
        _, dtype = tensor_type(op.operands[0].type)
        return (bools if dtype == "bool" else numbers)(importer, op)

    return convert


def _one(expr: Any) -> Any:
    return relax.const(1, expr.ty.dtype)


def _log_plus_one(x: Any) -> Any:
    """log(1 + x), which rounds 1 + x; the quotient makes up for that."""
    one = _one(x)
    rounded = relax.op.add(x, one)
    scaled = relax.op.multiply(relax.op.log(rounded), relax.op.divide(x, relax.op.subtract(rounded, one)))
    at_end = relax.op.logical_not(relax.op.isfinite(rounded))
    return relax.op.where(
        relax.op.equal(rounded, one), x, relax.op.where(at_end, relax.op.log(rounded), scaled)
    )


def _exp_minus_one(x: Any) -> Any:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which rounds little near zero."""
    half = relax.op.tanh(relax.op.multiply(x, relax.const(0.5, x.ty.dtype)))
    return relax.op.multiply(half, relax.op.add(relax.op.exp(x), _one(x)))


def _cbrt(x: Any) -> Any:
    third = relax.const(1 / 3, x.ty.dtype)
    return relax.op.multiply(relax.op.sign(x), relax.op.power(relax.op.abs(x), third))


def _divide(x: Array, y: Array) -> Array:
    """Return the quotient as XLA computes it. An integer quotient is rounded toward zero."""
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    minus_one = ~np.zeros_like(y)
    is_special = (y == 0) | (y == minus_one) if x.dtype.kind == "i" else y == 0
    safe = np.where(is_special, 1, y).astype(y.dtype)
    quotient = np.floor_divide(x - np.fmod(x, safe), safe)
    found: Array = np.where(y == 0, minus_one, np.where(is_special, -x, quotient))
    return found


def _modulo(x: Array, y: Array) -> Array:
    """Return the remainder as XLA has it, of the dividend's sign."""
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    found: Array = np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype)))
    return found


def _quotient(importer: Importer, op: Any) -> Tensor:
    shape, dtype = tensor_type(op.results[0].type)
    found = _softmax_operand(importer, op)
    if found is None:
        return importer.elementwise(importer.operands(op), shape, _divide, relax.op.divide, dtype)
    value, axis = found
    return importer.emit(relax.op.nn.softmax(importer.full(importer.tensor(value)).expr, axis))


def _softmax_operand(importer: Importer, op: Any) -> tuple[Any, int] | None:
    """Return the value and the axis of a softmax whose last operation this is: it is tuned as one kernel.

    %peak = reduce maximum of %x, %y = exponential(%x - %peak), %total = reduce add of %y: %y / %total
    """
    total = _repeated(importer, op.operands[1], "stablehlo.add", 0)
    exponential = _owner(op.operands[0], "stablehlo.exponential")
    difference = exponential and _owner(exponential.operands[0], "stablehlo.subtract")
    if total is None or difference is None or total[0] != op.operands[0]:
        return None
    peak = _repeated(importer, difference.operands[1], "stablehlo.maximum", -math.inf)
    return peak if peak == (difference.operands[0], total[1]) else None


def _repeated(importer: Importer, value: Any, fold: str, start: float) -> tuple[Any, int] | None:
    """Return the value and the axis of a reduction whose result is repeated along that axis, as this value
    is."""
    op = _owner(value, "stablehlo.broadcast_in_dim")
    rank = value.type.rank
    if op is not None and ints(op, "broadcast_dimensions") == [*range(rank)]:
        op = _owner(op.operands[0], "stablehlo.broadcast_in_dim")
    others = [] if op is None else ints(op, "broadcast_dimensions")
    if op is None or len(others) != rank - 1 or others != sorted(others):
        return None
    reduced = op.operands[0]
    # JAX begins with the smallest number, and compares the peak with it once more.
    largest = _owner(reduced, "stablehlo.maximum")
    if largest is not None and importer.tensor(largest.operands[0]).scalar == start:
        reduced = largest.operands[1]
    reduction = _owner(reduced, "stablehlo.reduce")
    (axis,) = {*range(rank)}.difference(others)
    if reduction is None or len(reduction.operands) != 2 or ints(reduction, "dimensions") != [axis]:
        return None
    if importer.tensor(reduction.operands[1]).scalar != start:
        return None
    inside = [each.operation.name for each in reduction.regions[0].blocks[0].operations]
    return (reduction.operands[0], axis) if inside == [fold, "stablehlo.return"] else None


def _owner(value: Any, name: str) -> Any:
    """Return the operation that computes a value, if it is of this name."""
    owner = getattr(value.owner, "operation", None)
    return owner if owner is not None and owner.name == name else None


def _erf(x: Array) -> Array:
    found: Array = np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64))
    return found


def _power(importer: Importer, op: Any) -> Tensor:
    shape, dtype = tensor_type(op.results[0].type)
    if "int" in dtype:
        raise UnsupportedOperator("powers of integers aren't supported")
    return importer.elementwise(importer.operands(op), shape, np.power, relax.op.power, dtype)


def _round_to_even(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    return Tensor(importer.graph.op("Round", operand.value), operand.shape)


def _round_from_zero(x: Any) -> Any:
    """Round to the nearest integer, halves away from zero. |x| + 1/2 would be rounded itself."""
    whole = relax.op.trunc(x)
    rest = relax.op.abs(relax.op.subtract(x, whole))
    is_near = relax.op.less(rest, relax.const(0.5, x.ty.dtype))
    return relax.op.where(is_near, whole, relax.op.add(whole, relax.op.sign(x)))


def _round_array_from_zero(x: Array) -> Array:
    whole = np.trunc(x)
    rounded: Array = whole + np.where(np.abs(x - whole) < 0.5, 0, np.sign(x))
    return rounded


_DIRECTIONS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "EQ": (np.equal, relax.op.equal),
    "NE": (np.not_equal, relax.op.not_equal),
    "LT": (np.less, relax.op.less),
    "LE": (np.less_equal, relax.op.less_equal),
    "GT": (np.greater, relax.op.greater),
    "GE": (np.greater_equal, relax.op.greater_equal),
}


def _compare(importer: Importer, op: Any) -> Tensor:
    direction = mlir("dialects.stablehlo").ComparisonDirectionAttr(op.attributes["comparison_direction"])
    shape, _ = tensor_type(op.results[0].type)
    on_arrays, on_exprs = _DIRECTIONS[direction.value]
    operands = importer.operands(op)
    if operands[0].dtype == "bool":
        operands = [as_type(importer, operand, "int8") for operand in operands]
    return importer.elementwise(operands, shape, on_arrays, on_exprs, "bool")


def _select(importer: Importer, op: Any) -> Tensor:
    condition, first, second = importer.operands(op)
    if condition.scalar is not None:
        return first if condition.scalar else second
    condition = _ranked(importer, condition, first.shape)
    return importer.elementwise(
        [condition, first, second], first.shape, np.where, relax.op.where, first.dtype
    )


def _clamp(importer: Importer, op: Any) -> Tensor:
    shape, dtype = tensor_type(op.results[0].type)
    operands = [_ranked(importer, operand, shape) for operand in importer.operands(op)]

    def on_arrays(low: Array, data: Array, high: Array) -> Array:
        return np.minimum(np.maximum(data, low), high)

    def on_exprs(low: Any, data: Any, high: Any) -> Any:
        return relax.op.minimum(relax.op.maximum(data, low), high)

    return importer.elementwise(operands, shape, on_arrays, on_exprs, dtype)


def _ranked(importer: Importer, operand: Tensor, shape: Shape) -> Tensor:
    """Return a scalar beside tensors of this shape with as many axes as these."""
    if operand.rank == len(shape):
        return operand
    return Tensor(importer.graph.op("Reshape", operand.value, np.ones(len(shape), np.int64)), shape)


def _convert(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    return as_type(importer, operand, tensor_type(op.results[0].type)[1])


def as_type(importer: Importer, operand: Tensor, dtype: str) -> Tensor:
    if dtype == operand.dtype:
        return operand

    if "float" in operand.dtype and "int" in dtype:
        return _truncated(importer, operand, dtype)

    def on_exprs(x: Any) -> Any:
        if dtype == "bool":
            return relax.op.not_equal(x, relax.const(0, operand.dtype))
        return relax.op.astype(x, dtype)

    return importer.elementwise([operand], operand.shape, lambda x: x, on_exprs, dtype)


def _truncated(importer: Importer, operand: Tensor, dtype: str) -> Tensor:
    """Convert floats to integers as XLA does: toward zero; what is out of range becomes the nearest integer,
    and NaN 0. Processors disagree about such numbers, and TVM lets them wrap around."""
    bounds = np.iinfo(dtype)
    # float16 has no number as large as these bounds.
    wide = "float32" if operand.dtype in ("float16", "bfloat16") else operand.dtype
    low, high = (np.array(bound).astype(wide) for bound in (bounds.min, bounds.max))

    def on_arrays(x: Array) -> Any:
        x = x.astype(wide)
        found = np.where((x > low) & (x < high), x, 0).astype(dtype)
        return np.where(x >= high, bounds.max, np.where(x <= low, bounds.min, found)).astype(dtype)

    def on_exprs(x: Any) -> Any:
        x = x if operand.dtype == wide else relax.op.astype(x, wide)
        least, largest = (constant(np.array(bound, dtype)) for bound in (bounds.min, bounds.max))
        below, above = relax.op.less_equal(x, constant(low)), relax.op.greater_equal(x, constant(high))
        unknown = relax.op.logical_or(relax.op.isnan(x), relax.op.logical_or(below, above))
        found = relax.op.astype(relax.op.where(unknown, relax.const(0, wide), x), dtype)
        return relax.op.where(above, largest, relax.op.where(below, least, found))

    return importer.elementwise([operand], operand.shape, on_arrays, on_exprs, dtype)


def _bitcast(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    shape, dtype = tensor_type(op.results[0].type)
    if shape != operand.shape or "bool" in (dtype, operand.dtype):
        raise UnsupportedOperator("only elements of the same size can be read as others")
    to = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
    return Tensor(importer.graph.op("BitCast", operand.value, to=to, opset=26), shape)


def _shift(on_arrays: Callable[..., Any], on_exprs: Callable[..., Any], kind: str = "") -> Converter:
    """Return the converter of a shift of integers, which are read as those of a kind ("int" or "uint") if one
    is given. A distance of all bits or more leaves zeros, or copies of the sign (`define_arithmetic`)."""

    def convert(importer: Importer, op: Any) -> Tensor:
        shape, dtype = tensor_type(op.results[0].type)
        bits = np.iinfo(dtype).bits
        of = f"{kind}{bits}" if kind else dtype

        def shift_arrays(x: Array, by: Array) -> Any:
            distance = by.view(f"uint{bits}")
            moved = on_arrays(x.view(of), np.minimum(distance, bits - 1).astype(of))
            fills_with_sign = on_exprs is relax.op.right_shift and of.startswith("int")
            return (moved if fills_with_sign else np.where(distance < bits, moved, 0)).astype(of).view(dtype)

        def shift_exprs(x: Any, by: Any) -> Any:
            if of == dtype:
                return on_exprs(x, by)
            graph = importer.graph
            x, by = (reinterpreted(graph, graph.emit(part), of).expr for part in (x, by))
            return reinterpreted(graph, graph.emit(on_exprs(x, by)), dtype).expr

        return importer.elementwise(importer.operands(op), shape, shift_arrays, shift_exprs, dtype)

    return convert


def _batch_norm(importer: Importer, op: Any) -> Tensor:
    """x * a + b, where a = scale / sqrt(variance + epsilon) and b = offset - mean * a."""
    data, scale, offset, mean, variance = importer.operands(op)
    epsilon = op.attributes["epsilon"].value
    axis = int(op.attributes["feature_index"].value)
    alone = [-1 if k == axis else 1 for k in range(data.rank)]

    def combine(on_arrays: Any, on_exprs: Any, *tensors: Tensor) -> Tensor:
        shape = max((tensor.shape for tensor in tensors), key=len)
        return importer.elementwise(tensors, shape, on_arrays, on_exprs, data.dtype)

    def factor(scale: Any, variance: Any) -> Any:
        return relax.op.divide(scale, relax.op.sqrt(relax.op.add(variance, relax.const(epsilon, data.dtype))))

    a = combine(lambda scale, variance: scale / np.sqrt(variance + epsilon), factor, scale, variance)
    b = combine(
        lambda offset, mean, a: offset - mean * a,
        lambda offset, mean, a: relax.op.subtract(offset, relax.op.multiply(mean, a)),
        *(offset, mean, a),
    )
    a, b = (
        Tensor(importer.graph.op("Reshape", importer.full(each), np.array(alone)), data.shape)
        for each in (a, b)
    )
    scaled = combine(np.multiply, relax.op.multiply, data, a)
    return combine(np.add, relax.op.add, scaled, b)


_OR, _AND = (np.logical_or, relax.op.logical_or), (np.logical_and, relax.op.logical_and)
CONVERTERS: Mapping[str, Converter] = {
    "chlo.acos": _elementwise(np.arccos, relax.op.acos),
    "chlo.acosh": _elementwise(np.arccosh, relax.op.acosh),
    "chlo.asin": _elementwise(np.arcsin, relax.op.asin),
    "chlo.asinh": _elementwise(np.arcsinh, relax.op.asinh),
    "chlo.atan": _elementwise(np.arctan, relax.op.atan),
    "chlo.atanh": _elementwise(np.arctanh, relax.op.atanh),
    "chlo.cosh": _elementwise(np.cosh, relax.op.cosh),
    "chlo.erf": _elementwise(_erf, relax.op.erf),
    "chlo.erfc": _elementwise(lambda x: 1 - _erf(x), lambda x: relax.op.subtract(_one(x), relax.op.erf(x))),
    "chlo.is_inf": _elementwise(np.isinf, relax.op.isinf),
    "chlo.sinh": _elementwise(np.sinh, relax.op.sinh),
    "chlo.square": _elementwise(np.square, lambda x: relax.op.multiply(x, x)),
    "chlo.tan": _elementwise(np.tan, relax.op.tan),
    "stablehlo.abs": _elementwise(np.abs, relax.op.abs),
    "stablehlo.add": _by_type(_OR, (np.add, relax.op.add)),
    "stablehlo.and": _by_type(_AND, (np.bitwise_and, relax.op.bitwise_and)),
    "stablehlo.atan2": _elementwise(np.arctan2, relax.op.atan2),
    "stablehlo.batch_norm_inference": _batch_norm,
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.cbrt": _elementwise(np.cbrt, _cbrt),
    "stablehlo.ceil": _elementwise(np.ceil, relax.op.ceil),
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.cosine": _elementwise(np.cos, relax.op.cos),
    "stablehlo.divide": _quotient,
    "stablehlo.exponential": _elementwise(np.exp, relax.op.exp),
    "stablehlo.exponential_minus_one": _elementwise(np.expm1, _exp_minus_one),
    "stablehlo.floor": _elementwise(np.floor, relax.op.floor),
    "stablehlo.is_finite": _elementwise(np.isfinite, relax.op.isfinite),
    "stablehlo.log": _elementwise(np.log, relax.op.log),
    "stablehlo.log_plus_one": _elementwise(np.log1p, _log_plus_one),
    "stablehlo.logistic": _elementwise(lambda x: 1 / (1 + np.exp(-x)), relax.op.sigmoid),
    "stablehlo.maximum": _by_type(_OR, (np.maximum, relax.op.maximum)),
    "stablehlo.minimum": _by_type(_AND, (np.minimum, relax.op.minimum)),
    "stablehlo.multiply": _by_type(_AND, (np.multiply, relax.op.multiply)),
    "stablehlo.negate": _elementwise(np.negative, relax.op.negative),
    "stablehlo.not": _by_type((np.logical_not, relax.op.logical_not), (np.invert, relax.op.bitwise_not)),
    "stablehlo.or": _by_type(_OR, (np.bitwise_or, relax.op.bitwise_or)),
    "stablehlo.power": _power,
    "stablehlo.remainder": _elementwise(_modulo, relax.op.mod),
    "stablehlo.round_nearest_afz": _elementwise(_round_array_from_zero, _round_from_zero),
    "stablehlo.round_nearest_even": _round_to_even,
    "stablehlo.rsqrt": _elementwise(lambda x: 1 / np.sqrt(x), relax.op.rsqrt),
    "stablehlo.select": _select,
    "stablehlo.shift_left": _shift(np.left_shift, relax.op.left_shift),
    "stablehlo.shift_right_arithmetic": _shift(np.right_shift, relax.op.right_shift, "int"),
    "stablehlo.shift_right_logical": _shift(np.right_shift, relax.op.right_shift, "uint"),
    "stablehlo.sign": _elementwise(np.sign, relax.op.sign),
    "stablehlo.sine": _elementwise(np.sin, relax.op.sin),
    "stablehlo.sqrt": _elementwise(np.sqrt, relax.op.sqrt),
    "stablehlo.subtract": _elementwise(np.subtract, relax.op.subtract),
    "stablehlo.tan": _elementwise(np.tan, relax.op.tan),
    "stablehlo.tanh": _elementwise(np.tanh, relax.op.tanh),
    "stablehlo.xor": _by_type((np.logical_xor, relax.op.logical_xor), (np.bitwise_xor, relax.op.bitwise_xor)),
}
