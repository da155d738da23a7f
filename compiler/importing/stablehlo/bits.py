"""Operations on the bits of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from compiler.constants.fold import constant
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.stablehlo.attributes import Array, number, tensor_type
from compiler.importing.stablehlo.elementwise import HALVES
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.values import UnsupportedOperator, numpy_dtype


def _bitcast(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    shape, dtype = tensor_type(op.results[0].type)
    if "bool" in (dtype, operand.dtype):
        raise UnsupportedOperator("the bits of booleans can't be read as other elements: convert them")
    array = operand.array
    if array is not None:
        return Tensor.constant(np.frombuffer(array.tobytes(), numpy_dtype(dtype)).reshape(shape))
    if shape == operand.shape:
        return Tensor(importer.emit(_as_bits(importer, operand.value.expr, dtype)).value, shape)
    own, wanted = (8 * numpy_dtype(each).itemsize for each in (operand.dtype, dtype))
    bits = _as_bits(importer, importer.full(operand).expr, f"uint{own}")
    narrow, wide = sorted((own, wanted))
    # The parts of an element are along a last axis, the lowest one first.
    places = constant(np.arange(0, wide, narrow).astype(f"uint{wide}"))
    if wanted < own:
        parts = relax.op.right_shift(relax.op.expand_dims(bits, -1), places)
        found = relax.op.astype(parts, f"uint{wanted}")
    else:
        parts = relax.op.left_shift(relax.op.astype(bits, f"uint{wanted}"), places)
        found = relax.op.sum(parts, -1)
    return importer.emit(_as_bits(importer, found, dtype))


def _shift(on_arrays: Callable[..., Any], on_exprs: Callable[..., Any], kind: str = "") -> Converter:
    """Return the converter of a shift of integers. If `kind` is "int" or "uint", the operands are read as
    such integers. A distance of all bits or more leaves zeros, or copies of the sign (`define_arithmetic`).
    """

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


def _count_ones(x: Any, bits: int) -> Any:
    """Return how many bits of unsigned integers are set: of pairs, of fours, of bytes, of all."""
    dtype = f"uint{bits}"

    def mask(byte: int) -> Any:
        return constant(np.array(int.from_bytes(bytes([byte] * (bits // 8)), "little"), dtype))

    def shifted(y: Any, by: int) -> Any:
        return relax.op.right_shift(y, constant(np.array(by, dtype)))

    pairs = relax.op.subtract(x, relax.op.bitwise_and(shifted(x, 1), mask(0x55)))
    fours = relax.op.add(
        relax.op.bitwise_and(pairs, mask(0x33)), relax.op.bitwise_and(shifted(pairs, 2), mask(0x33))
    )
    counts = relax.op.bitwise_and(relax.op.add(fours, shifted(fours, 4)), mask(0x0F))
    for by in (8, 16, 32):
        if by < bits:
            counts = relax.op.add(counts, shifted(counts, by))
    return relax.op.bitwise_and(counts, constant(np.array(0x7F, dtype)))


def _zeros_before(x: Any, bits: int) -> Any:
    """Return how many zeros come before the first bit that is set: all bits behind it are set first."""
    dtype = f"uint{bits}"
    for by in (1, 2, 4, 8, 16, 32):
        if by < bits:
            x = relax.op.bitwise_or(x, relax.op.right_shift(x, constant(np.array(by, dtype))))
    return relax.op.subtract(constant(np.array(bits, dtype)), _count_ones(x, bits))


def _zeros_before_in_array(x: Array, bits: int) -> Any:
    for by in (1, 2, 4, 8, 16, 32):
        if by < bits:
            x = x | (x >> by)
    return bits - np.bitwise_count(x)


def _of_bits(on_arrays: Callable[[Array, int], Any], on_exprs: Callable[[Any, int], Any]) -> Converter:
    """Return the converter of an operation on the bits of integers, which get the bits as unsigned ones."""

    def convert(importer: Importer, op: Any) -> Tensor:
        shape, dtype = tensor_type(op.results[0].type)
        bits = np.iinfo(dtype).bits

        def exprs(x: Any) -> Any:
            return _as_bits(importer, on_exprs(_as_bits(importer, x, f"uint{bits}"), bits), dtype)

        return importer.elementwise(
            importer.operands(op), shape, lambda x: on_arrays(x.view(f"uint{bits}"), bits), exprs, dtype
        )

    return convert


def _as_bits(importer: Importer, expr: Any, dtype: str) -> Any:
    """Return an expression whose elements have the same bits."""
    value = importer.graph.emit(expr)
    return value.expr if value.dtype == dtype else reinterpreted(importer.graph, value, dtype).expr


# The bits of an exponent, and of a mantissa.
_FLOAT_BITS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}


def _reduce_precision(importer: Importer, op: Any) -> Tensor:
    """Round to floats of fewer bits, ties to even. Too large ones become infinite, too small ones 0."""
    shape, dtype = tensor_type(op.results[0].type)
    own_exponent, own_mantissa = _FLOAT_BITS[dtype]
    exponent, mantissa = number(op, "exponent_bits"), number(op, "mantissa_bits")
    kind = f"uint{1 + own_exponent + own_mantissa}"
    cut = max(own_mantissa - mantissa, 0)
    bias, most = (1 << own_exponent - 1) - 1, (1 << min(exponent, own_exponent) - 1) - 1
    infinity = ((1 << own_exponent) - 1) << own_mantissa
    sign = 1 << own_exponent + own_mantissa
    least, largest = (bias - most) << own_mantissa, (bias + most) << own_mantissa
    is_narrow = exponent < own_exponent

    def on_arrays(x: Array) -> Any:
        bits = x.view(kind)
        if cut:
            bits = (bits + ((bits >> cut) & 1) + (1 << cut - 1) - 1) & ~np.array((1 << cut) - 1, kind)
        size = bits & np.array(infinity, kind)
        if is_narrow:
            bits = np.where(size > largest, bits & np.array(sign, kind) | np.array(infinity, kind), bits)
            bits = np.where(size <= least, bits & np.array(sign, kind), bits)
        return np.where(np.isnan(x), x, bits.astype(kind).view(x.dtype))

    def on_exprs(x: Any) -> Any:
        def const(number: int) -> Any:
            return constant(np.array(number, kind))

        bits = _as_bits(importer, x, kind)
        if cut:
            odd = relax.op.bitwise_and(relax.op.right_shift(bits, const(cut)), const(1))
            bits = relax.op.add(relax.op.add(bits, odd), const((1 << cut - 1) - 1))
            bits = relax.op.bitwise_and(bits, const(2 * sign - (1 << cut)))
        if is_narrow:
            bits = _as_bits(importer, bits, kind)
            size = relax.op.bitwise_and(bits, const(infinity))
            zero = relax.op.bitwise_and(bits, const(sign))
            above, below = relax.op.greater(size, const(largest)), relax.op.less_equal(size, const(least))
            bits = relax.op.where(above, relax.op.bitwise_or(zero, const(infinity)), bits)
            bits = relax.op.where(below, zero, bits)
        is_nan = relax.op.isnan(relax.op.astype(x, "float32") if dtype in HALVES else x)
        return relax.op.where(is_nan, x, _as_bits(importer, bits, dtype))

    return importer.elementwise(importer.operands(op), shape, on_arrays, on_exprs, dtype)


CONVERTERS: Mapping[str, Converter] = {
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.count_leading_zeros": _of_bits(_zeros_before_in_array, _zeros_before),
    "stablehlo.popcnt": _of_bits(lambda x, _: np.bitwise_count(x), _count_ones),
    "stablehlo.reduce_precision": _reduce_precision,
    "stablehlo.shift_left": _shift(np.left_shift, relax.op.left_shift),
    "stablehlo.shift_right_arithmetic": _shift(np.right_shift, relax.op.right_shift, "int"),
    "stablehlo.shift_right_logical": _shift(np.right_shift, relax.op.right_shift, "uint"),
}
