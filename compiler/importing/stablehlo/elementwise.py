"""Operations that compute each element of their result from one of each operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from compiler.constants.fold import constant
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.spec import Shape
from compiler.importing.stablehlo.attributes import Array, ints, mlir, tensor_type
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor

HALVES = ("float16", "bfloat16")


def _elementwise(on_arrays: Callable[..., Any], on_exprs: Callable[..., Any]) -> Converter:
    def convert(importer: Importer, op: Any) -> Tensor:
        shape, dtype = tensor_type(op.results[0].type)
        return importer.elementwise(importer.operands(op), shape, on_arrays, on_exprs, dtype)

    return convert


def _of_floats(on_arrays: Callable[..., Any], on_exprs: Callable[..., Any]) -> Converter:
    """Return the converter of a function of floats. Halves are computed in float32, as XLA does."""

    def convert(importer: Importer, op: Any) -> Tensor:
        shape, dtype = tensor_type(op.results[0].type)
        wide = [
            as_type(importer, operand, "float32") if operand.dtype in HALVES else operand
            for operand in importer.operands(op)
        ]
        result = importer.elementwise(
            wide, shape, on_arrays, on_exprs, "float32" if dtype in HALVES else dtype
        )
        return as_type(importer, result, dtype)

    return convert


def _by_type(
    on_bools: tuple[Callable[..., Any], Callable[..., Any]],
    on_numbers: tuple[Callable[..., Any], Callable[..., Any]],
) -> Converter:
    """Return the converter of an operation that has a separate converter for booleans."""
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


def _power(importer: Importer, op: Any) -> Any:
    shape, dtype = tensor_type(op.results[0].type)
    if "int" not in dtype:
        return _of_floats(np.power, relax.op.power)(importer, op)

    def on_exprs(base: Any, exponent: Any) -> Any:
        return _integer_power(relax.op, base, exponent, dtype, lambda expr: importer.graph.emit(expr).expr)

    def on_arrays(base: Array, exponent: Array) -> Any:
        return _integer_power(np, base, exponent, dtype, lambda array: array)

    return importer.elementwise(importer.operands(op), shape, on_arrays, on_exprs, dtype)


def _integer_power(ops: Any, base: Any, exponent: Any, dtype: str, emit: Callable[[Any], Any]) -> Any:
    """Multiply the powers to 1, 2, 4, ... that the bits of the exponent name. To a negative exponent, 1 is 1,
    and -1 is 1 or -1; any other number becomes 0.

    NumPy's functions and relax's operators, the `ops`, have the same names.
    """

    def const(number: int) -> Any:
        array = np.array(number).astype(dtype)
        return array if ops is np else constant(array)

    result, power = const(1), base
    for bit in range(np.iinfo(dtype).bits):
        is_set = emit(ops.not_equal(ops.bitwise_and(exponent, const(1 << bit)), const(0)))
        result = emit(ops.where(is_set, ops.multiply(result, power), result))
        power = emit(ops.multiply(power, power))
    if dtype.startswith("uint"):
        return result
    keeps_one = ops.where(ops.equal(ops.abs(base), const(1)), result, const(0))
    return ops.where(ops.less(exponent, const(0)), keeps_one, result)


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


DIRECTIONS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "EQ": (np.equal, relax.op.equal),
    "NE": (np.not_equal, relax.op.not_equal),
    "LT": (np.less, relax.op.less),
    "LE": (np.less_equal, relax.op.less_equal),
    "GT": (np.greater, relax.op.greater),
    "GE": (np.greater_equal, relax.op.greater_equal),
}


def _compare(importer: Importer, op: Any) -> Tensor:
    dialect = mlir("dialects.stablehlo")
    direction = dialect.ComparisonDirectionAttr(op.attributes["comparison_direction"])
    shape, _ = tensor_type(op.results[0].type)
    on_arrays, on_exprs = DIRECTIONS[direction.value]
    operands = importer.operands(op)
    if operands[0].dtype == "bool":
        operands = [as_type(importer, operand, "int8") for operand in operands]
    kind = op.attributes.get("compare_type", None)
    if kind is not None and dialect.ComparisonTypeAttr(kind).value == "TOTALORDER":
        operands = [in_total_order(importer, operand) for operand in operands]
    return importer.elementwise(operands, shape, on_arrays, on_exprs, "bool")


def in_total_order(importer: Importer, operand: Tensor) -> Tensor:
    """Return integers in the total order of floats: -NaN, -infinity, ..., -0.0, 0.0, ..., infinity, NaN.

    The bits of positive numbers are in their order, the bits of negative numbers in the reverse order.
    """
    wide = as_type(importer, operand, "float32") if operand.dtype in HALVES else operand
    kind = "int64" if wide.dtype == "float64" else "int32"
    highest = np.iinfo(kind).max

    def on_arrays(x: Array) -> Any:
        bits = x.view(kind)
        return np.where(bits < 0, bits ^ np.array(highest, kind), bits)

    def on_exprs(x: Any) -> Any:
        graph = importer.graph
        bits = reinterpreted(graph, graph.emit(x), kind).expr
        is_negative = relax.op.less(bits, constant(np.array(0, kind)))
        turned = relax.op.bitwise_xor(bits, constant(np.array(highest, kind)))
        return relax.op.where(is_negative, turned, bits)

    return importer.elementwise([wide], wide.shape, on_arrays, on_exprs, kind)


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


def as_index(importer: Importer, operand: Tensor) -> Tensor:
    """Return integers as int64. The largest ones of uint64, which int64 lacks, stay the largest."""
    if operand.dtype == "uint64":
        most = np.array(np.iinfo(np.int64).max, np.uint64)
        operand = importer.elementwise(
            [operand],
            operand.shape,
            lambda x: np.minimum(x, most),
            lambda x: relax.op.minimum(x, constant(most)),
            operand.dtype,
        )
    return as_type(importer, operand, "int64")


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


def _batch_norm_of_data(importer: Importer, op: Any) -> list[Tensor]:
    """Normalize by the mean and the variance of the data. Return these, too."""
    data, scale, offset = importer.operands(op)
    axis = int(op.attributes["feature_index"].value)
    graph, axes = importer.graph, np.array([k for k in range(data.rank) if k != axis])
    value = importer.full(data)
    mean = graph.op("ReduceMean", value, axes)
    centered = graph.op("Sub", value, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", centered, centered), axes)
    statistics = [Tensor.of(graph.op("Squeeze", each, axes)) for each in (mean, variance)]
    return [_normalized(importer, op, data, scale, offset, *statistics), *statistics]


def _batch_norm(importer: Importer, op: Any) -> Tensor:
    return _normalized(importer, op, *importer.operands(op))


def _normalized(
    importer: Importer,
    op: Any,
    data: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    variance: Tensor,
) -> Tensor:
    """x * a + b, where a = scale / sqrt(variance + epsilon) and b = offset - mean * a."""
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
    "chlo.acos": _of_floats(np.arccos, relax.op.acos),
    "chlo.acosh": _of_floats(np.arccosh, relax.op.acosh),
    "chlo.asin": _of_floats(np.arcsin, relax.op.asin),
    "chlo.asinh": _of_floats(np.arcsinh, relax.op.asinh),
    "chlo.atan": _of_floats(np.arctan, relax.op.atan),
    "chlo.atanh": _of_floats(np.arctanh, relax.op.atanh),
    "chlo.cosh": _of_floats(np.cosh, relax.op.cosh),
    "chlo.erf": _of_floats(_erf, relax.op.erf),
    "chlo.erfc": _of_floats(lambda x: 1 - _erf(x), lambda x: relax.op.subtract(_one(x), relax.op.erf(x))),
    "chlo.is_inf": _of_floats(np.isinf, relax.op.isinf),
    "chlo.sinh": _of_floats(np.sinh, relax.op.sinh),
    "chlo.square": _elementwise(np.square, lambda x: relax.op.multiply(x, x)),
    "chlo.tan": _of_floats(np.tan, relax.op.tan),
    "stablehlo.abs": _elementwise(np.abs, relax.op.abs),
    "stablehlo.add": _by_type(_OR, (np.add, relax.op.add)),
    "stablehlo.and": _by_type(_AND, (np.bitwise_and, relax.op.bitwise_and)),
    "stablehlo.atan2": _of_floats(np.arctan2, relax.op.atan2),
    "stablehlo.batch_norm_inference": _batch_norm,
    "stablehlo.batch_norm_training": _batch_norm_of_data,
    "stablehlo.cbrt": _of_floats(np.cbrt, _cbrt),
    "stablehlo.ceil": _elementwise(np.ceil, relax.op.ceil),
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.cosine": _of_floats(np.cos, relax.op.cos),
    "stablehlo.divide": _quotient,
    "stablehlo.exponential": _of_floats(np.exp, relax.op.exp),
    "stablehlo.exponential_minus_one": _of_floats(np.expm1, _exp_minus_one),
    "stablehlo.floor": _elementwise(np.floor, relax.op.floor),
    "stablehlo.is_finite": _of_floats(np.isfinite, relax.op.isfinite),
    "stablehlo.log": _of_floats(np.log, relax.op.log),
    "stablehlo.log_plus_one": _of_floats(np.log1p, _log_plus_one),
    "stablehlo.logistic": _of_floats(lambda x: 1 / (1 + np.exp(-x)), relax.op.sigmoid),
    "stablehlo.maximum": _by_type(_OR, (np.maximum, relax.op.maximum)),
    "stablehlo.minimum": _by_type(_AND, (np.minimum, relax.op.minimum)),
    "stablehlo.multiply": _by_type(_AND, (np.multiply, relax.op.multiply)),
    "stablehlo.negate": _elementwise(np.negative, relax.op.negative),
    "stablehlo.not": _by_type((np.logical_not, relax.op.logical_not), (np.invert, relax.op.bitwise_not)),
    "stablehlo.or": _by_type(_OR, (np.bitwise_or, relax.op.bitwise_or)),
    "stablehlo.power": _power,
    "stablehlo.remainder": _of_floats(_modulo, relax.op.mod),
    "stablehlo.round_nearest_afz": _elementwise(_round_array_from_zero, _round_from_zero),
    "stablehlo.round_nearest_even": _round_to_even,
    "stablehlo.rsqrt": _of_floats(lambda x: 1 / np.sqrt(x), relax.op.rsqrt),
    "stablehlo.select": _select,
    "stablehlo.sign": _elementwise(np.sign, relax.op.sign),
    "stablehlo.sine": _of_floats(np.sin, relax.op.sin),
    "stablehlo.sqrt": _of_floats(np.sqrt, relax.op.sqrt),
    "stablehlo.subtract": _elementwise(np.subtract, relax.op.subtract),
    "stablehlo.tan": _of_floats(np.tan, relax.op.tan),
    "stablehlo.tanh": _of_floats(np.tanh, relax.op.tanh),
    "stablehlo.xor": _by_type((np.logical_xor, relax.op.logical_xor), (np.bitwise_xor, relax.op.bitwise_xor)),
}
