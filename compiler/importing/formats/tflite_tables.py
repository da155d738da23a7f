"""Functions of quantized numbers that LiteRT looks up in tables, with the same tables.

For int8, a table has the result of every byte. For int16, it has 513 results, and LiteRT interpolates between
neighbours. All numbers are float32 as there, so the results are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

Floats = NDArray[np.float32]
# Takes the operands and the least number of the result's type.
Function = Callable[[Floats, np.float32], Floats]
Rounding = Callable[[Floats], Floats]
# LiteRT interpolates between 2 ** 9 places, so 7 of 16 bits are between two places.
_PLACES, _BITS = 512, 7
_ONE = np.float32(1)


def look_up(importer: Any, op: Any, function: Function, rounded: Rounding) -> Any | None:
    """Return a function of an operator's operand by LiteRT's table; None if LiteRT uses none for its type.

    `rounded` makes the steps of bytes whole.
    """
    (data,), (output,) = importer.get_input_tensors(op), importer.get_output_tensors(op)
    if not data.qnn_params or not output.qnn_params:
        return None
    x = importer.get_tensor_expr(data)
    (scale, zero), (result_scale, result_zero) = (
        (np.float32(tensor.qnn_params["scale"].value.numpy()), tensor.qnn_params["zero_point"].value.numpy())
        for tensor in (data, output)
    )
    with np.errstate(all="ignore"):
        if str(x.ty.dtype) == "int8":
            numbers = scale * (np.arange(-128, 128) - int(zero)).astype(np.float32)
            least = result_scale * np.float32(-128 - int(result_zero))
            steps = rounded(function(numbers, least) * (_ONE / result_scale)) + int(result_zero)
            table = _bounded(steps, np.int8)
            place = relax.op.add(relax.op.astype(x, "int32"), relax.const(128, "int32"))
            return relax.op.take(relax.const(table), importer.bb.normalize(place), mode="clip")
        if str(x.ty.dtype) == "int16":
            return _interpolated(importer.bb, x, _points(function, scale, result_scale))
    return None


def halves_away(x: Floats) -> Floats:
    """Round halves away from zero, as C does."""
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


def gelu_of_floats(x: Floats, _least: np.float32, *, by_tanh: bool) -> Floats:
    wide = x.astype(np.float64)
    if by_tanh:
        gate = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    else:
        gate = np.vectorize(math.erf)(wide * math.sqrt(0.5))
    return np.asarray(0.5 * wide * (1 + gate), np.float32)


def _points(function: Function, scale: np.float32, result_scale: np.float32) -> NDArray[np.int32]:
    """Return the results at the places. A bias halves the interpolation's error in the middle of two."""
    least, greatest = np.float32(-(2**15)), np.float32(2**15 - 1)
    low, high = scale * least, scale * greatest
    step = (high - low) / np.float32(_PLACES)
    inverse = np.float32(2**16) / (result_scale * greatest - result_scale * least)

    def steps(places: Floats) -> Floats:
        return function(places, result_scale * least) * inverse

    numbers = low + np.arange(_PLACES, dtype=np.float32) * step
    here = halves_away(steps(numbers))
    following = steps(low + np.arange(1, _PLACES + 1, dtype=np.float32) * step)
    between = halves_away((following + here) / np.float32(2))
    bias = halves_away((between - halves_away(steps(numbers + step / np.float32(2)))) / np.float32(2))
    last = halves_away(steps(np.array([high], np.float32)))
    return _bounded(np.concatenate([here - bias, last]), np.int16).astype(np.int32)


def _interpolated(builder: Any, x: Any, points: NDArray[np.int32]) -> Any:
    def const(number: int) -> Any:
        return relax.const(number, "int32")

    wide = builder.normalize(relax.op.astype(x, "int32"))
    place = builder.normalize(relax.op.add(relax.op.right_shift(wide, const(_BITS)), const(_PLACES // 2)))
    rest = relax.op.bitwise_and(wide, const(2**_BITS - 1))
    base = relax.op.take(relax.const(points[:-1]), place, mode="clip")
    # LiteRT stores a slope in 16 bits, which may wrap around.
    slope = relax.op.take(relax.const(np.diff(points).astype(np.int16).astype(np.int32)), place, mode="clip")
    half = const(2 ** (_BITS - 1))
    more = relax.op.right_shift(relax.op.add(relax.op.multiply(slope, rest), half), const(_BITS))
    return relax.op.astype(builder.normalize(relax.op.add(base, more)), "int16")


def _bounded(steps: Floats, dtype: Any) -> NDArray[Any]:
    """Convert to integers. NaN, the difference of infinities, becomes 0."""
    limits = np.iinfo(dtype)
    return np.clip(np.nan_to_num(steps, nan=0), limits.min, limits.max).astype(dtype)
