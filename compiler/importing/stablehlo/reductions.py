"""Operations that sum elements up, or compare them, along axes.

What they do with two elements is a region of the program. A region of one operation is recognised by its
name, a longer region by its results for a few numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.stablehlo.attributes import ints
from compiler.importing.stablehlo.elementwise import as_type
from compiler.importing.stablehlo.importer import ConcatenatedTensors, Converter, Importer, Tensor
from compiler.importing.stablehlo.movement import reshaped, sliced
from compiler.importing.values import UnsupportedOperator, numpy_dtype


@dataclass(frozen=True)
class Fold:
    """An operation that makes one element of two: of arrays, of expressions, and if relax has it, of all
    along some axes."""

    name: str
    on_arrays: Any
    on_exprs: Callable[..., Any]
    along: Callable[..., Any] | None = None

    def identity(self, dtype: str) -> Any:
        """Return the number that changes nothing."""
        if self.name in ("add", "multiply"):
            return int(self.name == "multiply")
        if self.name in ("or", "xor"):
            return 0
        largest = self.name == "minimum"
        if dtype == "bool":
            return largest
        if "float" in dtype:
            return math.inf if largest else -math.inf
        bounds = np.iinfo(dtype)
        if self.name == "and":
            return -1 if bounds.min else bounds.max
        return bounds.max if largest else bounds.min

    def of(self, importer: Importer, first: Tensor, second: Tensor) -> Tensor:
        """Combine two tensors of one shape, element by element."""
        return importer.elementwise([first, second], first.shape, self.on_arrays, self.on_exprs, first.dtype)


_FOLDS = {
    fold.name: fold
    for fold in (
        Fold("add", np.add, relax.op.add, relax.op.sum),
        Fold("multiply", np.multiply, relax.op.multiply, relax.op.prod),
        Fold("maximum", np.maximum, relax.op.maximum, relax.op.max),
        Fold("minimum", np.minimum, relax.op.minimum, relax.op.min),
        Fold("and", np.bitwise_and, relax.op.bitwise_and),
        Fold("or", np.bitwise_or, relax.op.bitwise_or),
        Fold("xor", np.bitwise_xor, relax.op.bitwise_xor),
    )
}
# Booleans are compared as bytes.
_BOOLEAN_FOLDS = {"or": "maximum", "and": "minimum", "add": "maximum", "multiply": "minimum"}


def fold_of(region: Any, dtype: str) -> Fold | None:
    """Return the operation that a region of two elements consists of."""
    operations = [op.operation for op in region.blocks[0].operations]
    if len(operations) != 2 or list(operations[1].operands) != list(operations[0].results):
        return None
    given, arguments = list(operations[0].operands), list(region.blocks[0].arguments)
    if given not in (arguments, arguments[::-1]):
        return None
    name = operations[0].name.removeprefix("stablehlo.")
    return _FOLDS.get(_BOOLEAN_FOLDS.get(name, name) if dtype == "bool" else name)


def _reduce(importer: Importer, op: Any) -> Any:
    axes, operands = ints(op, "dimensions"), importer.operands(op)
    if len(operands) == 4:
        return _place_of_extreme(importer, op, operands, axes)
    data, start = operands[0], operands[-1]
    dtype = data.dtype
    fold = fold_of(op.regions[0], dtype) if len(operands) == 2 else None
    if fold is None:
        raise UnsupportedOperator(
            "only sums, products, extremes and their places, and, or and xor are computed along axes"
        )
    if dtype == "bool":
        data, start = (as_type(importer, each, "int8") for each in (data, start))
    array = data.array
    if array is not None:
        with np.errstate(all="ignore"):
            least = np.array(fold.identity(data.dtype), array.dtype)
            found = fold.on_arrays.reduce(array, tuple(axes), dtype=array.dtype, initial=least)
            result = Tensor.constant(np.asarray(found))
    else:
        result = _folded(importer, data, axes, fold)
    return as_type(importer, combine_with_start(importer, result, start, fold), dtype)


def combine_with_start(importer: Importer, result: Tensor, start: Tensor, fold: Fold) -> Tensor:
    """Combine the result of a reduction with its initial value, a scalar."""
    if start.scalar is not None and start.scalar == fold.identity(result.dtype):
        return result
    alone = Tensor(reshaped(importer, start, [1] * result.rank).value, result.shape)
    return fold.of(importer, result, alone)


def _folded(importer: Importer, data: Tensor, axes: Sequence[int], fold: Fold) -> Tensor:
    """Reduce along axes. Without a relax reduction, combine halves of an axis until one element is left."""
    if fold.along is not None:
        return importer.emit(fold.along(importer.full(data).expr, axis=axes)) if axes else data
    left = [extent for axis, extent in enumerate(data.shape) if axis not in axes]
    if 0 in data.shape:
        least = np.array(fold.identity(data.dtype), numpy_dtype(data.dtype))
        return Tensor.constant(least.reshape((1,) * len(left)), tuple(left))
    for axis in axes:
        while (extent := data.shape[axis]) > 1:
            half = extent // 2
            first, second = (
                take_part(importer, data, axis, 0, half),
                take_part(importer, data, axis, half, half),
            )
            found = fold.of(importer, first, second)
            if extent % 2:
                found = importer.joined(
                    ConcatenatedTensors((found, take_part(importer, data, axis, extent - 1, 1)), axis)
                )
            data = found
    return reshaped(importer, data, left)


def take_part(importer: Importer, data: Tensor, axis: int, begin: int, count: int, stride: int = 1) -> Tensor:
    """Return `count` elements along one axis."""
    cuts = [slice(None)] * data.rank
    cuts[axis] = slice(begin, begin + (count - 1) * stride + 1, stride)
    return sliced(importer, data, cuts)


def _place_of_extreme(
    importer: Importer, op: Any, operands: Sequence[Tensor], axes: Sequence[int]
) -> list[Tensor]:
    """Import the two results of a reduction of elements and their places, as argmax has them."""
    data, places, start, _ = operands
    if len(axes) != 1:
        raise UnsupportedOperator("places are computed along one axis only")
    (axis,) = axes
    alone = [1] * data.rank
    alone[axis] = -1
    counted = places.value.constant
    if counted is None or not np.array_equal(counted, np.arange(data.shape[axis]).reshape(alone)):
        raise UnsupportedOperator(
            "two tensors are reduced together only if the second one counts along the axis"
        )
    # What a body may compute of them, such as sizes and roundings, has another order.
    letter = "f" if "float" in data.dtype else data.dtype[0]
    numbers = {"b": (False, True), "u": (0, 1, 2), "i": (-3, 1, 2), "f": (-3, 1, 1.25, 2)}[letter]
    cases = list(itertools.product(numbers, (3, 5), numbers, (4,)))
    found = [importer.apply(op.regions[0], *case) for case in cases]
    for name, fold, extreme in (
        ("argmax", _FOLDS["maximum"], max),
        ("argmin", _FOLDS["minimum"], min),
    ):
        wanted = [
            [a, min(i, j)] if a == b else [a, i] if extreme(a, b) == a else [b, j] for a, i, b, j in cases
        ]
        if found == wanted and start.scalar == fold.identity(data.dtype):
            # Booleans are compared as bytes.
            numbered = as_type(importer, data, "int8") if data.dtype == "bool" else data
            at = importer.emit(getattr(relax.op, name)(importer.full(numbered).expr, axis=axis))
            best = as_type(importer, _folded(importer, numbered, [axis], fold), data.dtype)
            return [best, as_type(importer, at, places.dtype)]
    raise UnsupportedOperator("two tensors are reduced together only to an extreme and its first place")


CONVERTERS: Mapping[str, Converter] = {"stablehlo.reduce": _reduce}
