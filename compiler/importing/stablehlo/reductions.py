"""Operations that sum elements up, compare them, or do either within windows.

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

from compiler.constants.fold import MAX_CONSTANT_BYTES, constant
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.stablehlo.attributes import Array, ints, number, pairs
from compiler.importing.stablehlo.elementwise import as_type
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.stablehlo.movement import reshaped, reversed_along, transposed
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

_POOLS = {
    "maximum": {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d},
    "add": {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d},
}


@dataclass(frozen=True)
class Fold:
    """An operation that makes one element of two: of arrays, of expressions, of all along some axes."""

    name: str
    on_arrays: Any
    on_exprs: Callable[..., Any]
    along: Callable[..., Any]

    def identity(self, dtype: str) -> Any:
        """Return the number that changes nothing."""
        if self.name in ("add", "multiply"):
            return int(self.name == "multiply")
        largest = self.name == "minimum"
        if "float" in dtype:
            return math.inf if largest else -math.inf
        bounds = np.iinfo(dtype)
        return bounds.max if largest else bounds.min


_FOLDS = {
    fold.name: fold
    for fold in (
        Fold("add", np.add, relax.op.add, relax.op.sum),
        Fold("multiply", np.multiply, relax.op.multiply, relax.op.prod),
        Fold("maximum", np.maximum, relax.op.maximum, relax.op.max),
        Fold("minimum", np.minimum, relax.op.minimum, relax.op.min),
    )
}
HALVES = ("float16", "bfloat16")
_RUNNING = {"add": relax.op.cumsum, "multiply": relax.op.cumprod}
# Booleans are compared as bytes.
_OF_BOOLS = {"or": "maximum", "and": "minimum", "add": "maximum", "multiply": "minimum"}


def fold_of(region: Any, dtype: str) -> Fold | None:
    """Return the operation that a region of two elements consists of."""
    operations = [op.operation for op in region.blocks[0].operations]
    if len(operations) != 2 or list(operations[1].operands) != list(operations[0].results):
        return None
    given, arguments = list(operations[0].operands), list(region.blocks[0].arguments)
    if given not in (arguments, arguments[::-1]):
        return None
    name = operations[0].name.removeprefix("stablehlo.")
    return _FOLDS.get(_OF_BOOLS.get(name, name) if dtype == "bool" else name)


def _reduce(importer: Importer, op: Any) -> Any:
    axes, operands = ints(op, "dimensions"), importer.operands(op)
    if len(operands) == 4:
        return _place_of_extreme(importer, op, operands, axes)
    data, start = operands[0], operands[-1]
    dtype = data.dtype
    fold = fold_of(op.regions[0], dtype) if len(operands) == 2 else None
    if fold is None:
        raise UnsupportedOperator("only sums, products, extremes and their places are computed along axes")
    if dtype == "bool":
        data, start = (as_type(importer, each, "int8") for each in (data, start))
    array = data.array
    if array is not None:
        with np.errstate(all="ignore"):
            least = np.array(fold.identity(data.dtype), array.dtype)
            found = fold.on_arrays.reduce(array, tuple(axes), dtype=array.dtype, initial=least)
            result = Tensor.constant(np.asarray(found))
    else:
        result = importer.emit(fold.along(importer.full(data).expr, axis=axes)) if axes else data
    if start.scalar is None or start.scalar != fold.identity(data.dtype):
        alone = Tensor(reshaped(importer, start, [1] * result.rank).value, result.shape)
        result = importer.elementwise(
            [result, alone], result.shape, fold.on_arrays, fold.on_exprs, data.dtype
        )
    return as_type(importer, result, dtype)


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
    cases = list(itertools.product((1, 2), (3, 5), (1, 2), (4,)))
    found = [importer.apply(op.regions[0], *case) for case in cases]
    for name, fold, extreme in (
        ("argmax", _FOLDS["maximum"], max),
        ("argmin", _FOLDS["minimum"], min),
    ):
        wanted = [
            [a, min(i, j)] if a == b else [a, i] if extreme(a, b) == a else [b, j] for a, i, b, j in cases
        ]
        if found == wanted and start.scalar == fold.identity(data.dtype):
            value = importer.full(data)
            at = importer.emit(getattr(relax.op, name)(value.expr, axis=axis))
            return [importer.emit(fold.along(value.expr, axis=[axis])), as_type(importer, at, places.dtype)]
    raise UnsupportedOperator("two tensors are reduced together only to an extreme and its first place")


def _reduce_window(importer: Importer, op: Any) -> Tensor:
    operands = importer.operands(op)
    fold = fold_of(op.regions[0], operands[0].dtype) if len(operands) == 2 else None
    if fold is None:
        raise UnsupportedOperator("only sums, products and extremes are computed in windows")
    data, start = operands
    rank = data.rank
    ones = [1] * rank
    sizes = ints(op, "window_dimensions")
    window = Window(
        sizes,
        ints(op, "window_strides", ones),
        ints(op, "window_dilations", ones),
        pairs(op, "padding", rank),
    )
    if any(by != 1 for by in ints(op, "base_dilations", ones)) or min(itertools.chain(*window.edges)) < 0:
        raise UnsupportedOperator("windows on data with gaps, or that is cut off, aren't supported")
    if data.array is not None and start.array is not None:
        return _in_windows_of_constant(data, start.array, window, fold)
    if start.scalar != fold.identity(data.dtype):
        raise UnsupportedOperator("its initial value must be the one that changes nothing")
    axes = window.axes
    if fold.name in _RUNNING and len(axes) == 1 and window.is_running(axes[0], data.shape[axes[0]]):
        return _running(importer, data, axes[0], fold, is_reversed=window.edges[axes[0]][0] == 0)
    return _pooled(importer, data, window, fold)


@dataclass(frozen=True)
class Window:
    """The windows that a reduction takes; a number, or two, for each axis."""

    sizes: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    edges: Sequence[tuple[int, int]]

    @property
    def axes(self) -> list[int]:
        """The axes along which windows aren't the elements themselves."""
        return [
            axis
            for axis, each in enumerate(zip(self.sizes, self.strides, self.edges, strict=True))
            if each != (1, 1, (0, 0))
        ]

    def is_running(self, axis: int, extent: int) -> bool:
        """Return whether each window has all elements of an axis up to its own place, or all from there."""
        has_all = self.sizes[axis] == extent and self.strides[axis] == self.dilations[axis] == 1
        return has_all and tuple(self.edges[axis]) in ((extent - 1, 0), (0, extent - 1))


def _running(importer: Importer, data: Tensor, axis: int, fold: Fold, is_reversed: bool) -> Tensor:
    data = reversed_along(importer, data, [axis]) if is_reversed else data
    dtype = None if "float" in data.dtype else data.dtype
    result = importer.emit(_RUNNING[fold.name](importer.full(data).expr, axis, dtype))
    return reversed_along(importer, result, [axis]) if is_reversed else result


def _in_windows_of_constant(data: Tensor, start: Array, window: Window, fold: Fold) -> Tensor:
    """Compute the reduction of a constant, such as how many elements each window has."""
    axes = window.axes
    constant = data.value.constant
    assert constant is not None
    shape = tuple(data.shape[k] if k in axes else constant.shape[k] for k in range(data.rank))
    widths = [window.edges[k] if k in axes else (0, 0) for k in range(data.rank)]
    wide = np.pad(np.broadcast_to(constant, shape), widths, constant_values=start.reshape(()).item())
    covered = [(window.sizes[k] - 1) * window.dilations[k] + 1 for k in axes]
    if math.prod(window.sizes) * wide.nbytes > MAX_CONSTANT_BYTES:
        raise UnsupportedOperator("the windows of a constant have too many elements")
    windows = np.lib.stride_tricks.sliding_window_view(wide, covered, axis=tuple(axes))
    cuts = [slice(None)] * windows.ndim
    for position, axis in enumerate(axes):
        cuts[axis] = slice(None, None, window.strides[axis])
        cuts[data.rank + position] = slice(None, None, window.dilations[axis])
    with np.errstate(all="ignore"):
        ends = tuple(range(data.rank, windows.ndim))
        found = fold.on_arrays.reduce(windows[tuple(cuts)], ends, initial=start.reshape(()), dtype=wide.dtype)
    result = np.asarray(found)
    full = tuple(result.shape[k] if k in axes else data.shape[k] for k in range(data.rank))
    return Tensor.constant(result, full)


def _pooled(importer: Importer, data: Tensor, window: Window, fold: Fold) -> Tensor:
    """Import a reduction in windows as pooling.

    With a batch and channels around the axes of the windows, it is channels-last or channels-first; other
    axes become the batch.
    """
    rank, axes = data.rank, window.axes
    if fold.name not in ("add", "maximum", "minimum") or data.dtype == "bool":
        raise UnsupportedOperator("only sums and extremes of numbers are computed in windows")
    if not axes:
        return data
    if fold.name == "minimum":
        if "uint" in data.dtype:
            raise UnsupportedOperator("minima of unsigned numbers aren't computed in windows")
        turned = _negative(importer, data)
        return _negative(importer, _pooled(importer, turned, window, _FOLDS["maximum"]))
    if len(axes) > 3:
        raise UnsupportedOperator("only windows along one to three axes are supported")
    count = rank - 2
    if count in (1, 2, 3) and axes[0] >= 1 and axes[-1] <= count:
        spatial, layout = [*range(1, count + 1)], "N{}C"
    elif count in (1, 2, 3) and axes[0] >= 2:
        spatial, layout = [*range(2, rank)], "NC{}"
    else:
        others = [axis for axis in range(rank) if axis not in axes]
        order = [*others, *axes]
        back = np.argsort(order).tolist()
        data = transposed(importer, data, order)
        kept, moved = data.shape[: len(others)], data.shape[len(others) :]
        flat = reshaped(importer, data, [math.prod(kept), 1, *moved])
        inner = Window(
            [1, 1, *(window.sizes[k] for k in axes)],
            [1, 1, *(window.strides[k] for k in axes)],
            [1, 1, *(window.dilations[k] for k in axes)],
            [(0, 0), (0, 0), *(window.edges[k] for k in axes)],
        )
        pooled = _pooled(importer, flat, inner, fold)
        return transposed(importer, reshaped(importer, pooled, [*kept, *pooled.shape[2:]]), back)
    sizes = [window.sizes[k] for k in spatial]
    # Sums of halves are rounded once.
    summed = as_type(importer, data, "float32") if fold.name == "add" and data.dtype in HALVES else data
    call = _POOLS[fold.name][len(spatial)](
        importer.full(summed).expr,
        pool_size=sizes,
        strides=[window.strides[k] for k in spatial],
        padding=[*(window.edges[k][0] for k in spatial), *(window.edges[k][1] for k in spatial)],
        dilation=[window.dilations[k] for k in spatial],
        count_include_pad=True,
        layout=layout.format("DHW"[-len(spatial) :]),
    )
    result = importer.emit(call)
    if fold.name == "maximum":
        return result
    if "float" not in data.dtype:
        raise UnsupportedOperator("only sums of floats are computed in windows")
    area = Tensor.constant(np.array(math.prod(sizes), numpy_dtype(result.dtype)))
    total = importer.elementwise([result, area], result.shape, np.multiply, relax.op.multiply, result.dtype)
    return as_type(importer, total, data.dtype)


def _negative(importer: Importer, tensor: Tensor) -> Tensor:
    return importer.elementwise([tensor], tensor.shape, np.negative, relax.op.negative, tensor.dtype)


def _sort(importer: Importer, op: Any) -> list[Tensor]:
    """Sort one tensor, and others in its order. Equal elements stay in theirs."""
    operands = importer.operands(op)
    axis = number(op, "dimension", operands[0].rank - 1) % operands[0].rank
    cases = [(2, 1), (1, 2), (1, 1)]
    found = set()
    # The others have no say.
    for rest in ((1, 2), (2, 1)):
        numbers = [[*case, *rest * (len(operands) - 1)] for case in cases]
        found.add(tuple(importer.apply(op.regions[0], *each)[0] for each in numbers))
    if found == {(True, False, False)}:
        descending = True
    elif found == {(False, True, False)}:
        descending = False
    else:
        raise UnsupportedOperator("only the order of the first tensor's elements, up or down, is supported")
    values = [importer.full(operand) for operand in operands]
    places = relax.op.argsort(_ordered(importer, operands[0]).expr, axis, descending, "int32")
    order = importer.emit(places).value
    return [importer.emit(relax.op.gather_elements(value.expr, order.expr, axis)) for value in values]


def _ordered(importer: Importer, tensor: Tensor) -> Value:
    """Return integers in the order that XLA has for the elements: NaN is the largest, and zeros are equal.

    The bits of floats, but for the sign, are integers in the order of the numbers. TVM sorts signed integers.
    """
    graph, value, dtype = importer.graph, importer.full(tensor), tensor.dtype
    if dtype in ("int32", "int64"):
        return value
    if dtype == "uint64":
        flipped = relax.op.bitwise_xor(value.expr, constant(np.array(1 << 63, np.uint64)))
        return reinterpreted(graph, graph.emit(flipped), "int64")
    if "float" not in dtype:
        return importer.full(as_type(importer, tensor, "int64" if dtype == "uint32" else "int32"))
    if dtype in HALVES:
        value = graph.emit(relax.op.astype(value.expr, "float32"))
    kind = "int64" if value.dtype == "float64" else "int32"
    highest = constant(np.array(np.iinfo(kind).max, kind))
    bits = reinterpreted(graph, value, kind).expr
    size = graph.emit(relax.op.bitwise_and(bits, highest)).expr
    is_negative = relax.op.less(bits, constant(np.array(0, kind)))
    key = graph.emit(relax.op.where(is_negative, relax.op.negative(size), size))
    return graph.emit(relax.op.where(relax.op.isnan(value.expr), highest, key.expr))


def _top_k(importer: Importer, op: Any) -> list[Tensor]:
    (data,) = importer.operands(op)
    return top_k(importer, data, number(op, "k"))


def top_k(importer: Importer, data: Tensor, count: int) -> list[Tensor]:
    """Return the largest elements along the last axis, and their places; NaN is the largest of all."""
    _, places = importer.graph.ops("TopK", 2, _ordered(importer, data), np.array([count]))
    at = as_type(importer, Tensor.of(places), "int32")
    taken = relax.op.gather_elements(importer.full(data).expr, importer.full(at).expr, data.rank - 1)
    return [importer.emit(taken), at]


CONVERTERS: Mapping[str, Converter] = {
    "chlo.top_k": _top_k,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.sort": _sort,
}
