"""Reductions in windows, and the gradients of pooling.

Sums and maxima are pooling, which is tuned as one kernel. Sums of all elements up to each one are running
sums. All others are combined axis by axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from compiler.constants.fold import MAX_CONSTANT_BYTES
from compiler.importing.spec import Shape
from compiler.importing.stablehlo.attributes import Array, ints, mlir, pairs, tensor_type
from compiler.importing.stablehlo.elementwise import DIRECTIONS, HALVES, as_type
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.stablehlo.movement import padded, reshaped, reversed_along, sliced, transposed
from compiler.importing.stablehlo.reductions import Fold, combine_with_start, fold_of, take_part
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

_POOLS = {
    "maximum": {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d},
    "add": {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d},
}
_RUNNING = {"add": relax.op.cumsum, "multiply": relax.op.cumprod}
# The elements of a window are compared one after the other.
_MAX_SELECTED_FROM = 256


def _reduce_window(importer: Importer, op: Any) -> Tensor:
    operands = importer.operands(op)
    fold = fold_of(op.regions[0], operands[0].dtype) if len(operands) == 2 else None
    if fold is None:
        raise UnsupportedOperator(
            "only sums, products, extremes, and, or and xor of one tensor are computed in windows"
        )
    shape, dtype = tensor_type(op.results[0].type)
    if 0 in shape:
        return Tensor.constant(np.empty(shape, numpy_dtype(dtype)))
    data, start = operands
    if dtype == "bool":
        data, start = (as_type(importer, each, "int8") for each in operands)
    elif fold.name == "add" and dtype in HALVES:
        # Sums of halves are rounded once.
        data, start = (as_type(importer, each, "float32") for each in operands)
    rank = data.rank
    ones = [1] * rank
    gaps = [by - 1 for by in ints(op, "base_dilations", ones)]
    window = Window(
        ints(op, "window_dimensions"),
        ints(op, "window_strides", ones),
        ints(op, "window_dilations", ones),
        pairs(op, "padding", rank),
    )
    return as_type(importer, _reduced(importer, data, start, window, gaps, fold), dtype)


def _reduced(
    importer: Importer, data: Tensor, start: Tensor, window: Window, gaps: Sequence[int], fold: Fold
) -> Tensor:
    is_plain = not any(gaps) and min(itertools.chain(*window.edges), default=0) >= 0
    if is_plain and data.array is not None and start.array is not None:
        return _in_windows_of_constant(data, start.array, window, fold)
    is_plain = is_plain and start.scalar == fold.identity(data.dtype)
    axes = window.axes
    if is_plain and not axes:
        return data
    if (
        is_plain
        and fold.name in _RUNNING
        and len(axes) == 1
        and window.is_running(axes[0], data.shape[axes[0]])
    ):
        return _running(importer, data, axes[0], fold, is_reversed=window.edges[axes[0]][0] == 0)
    is_pool = fold.name == "maximum" or (fold.name == "add" and "float" in data.dtype)
    if is_plain and is_pool and len(axes) <= 3:
        return _pooled(importer, data, window, fold)
    # XLA ignores elements outside of the tensor.
    nothing = np.array(fold.identity(data.dtype)).astype(numpy_dtype(data.dtype))
    wide = padded(importer, data, Tensor.constant(nothing), window.edges, gaps)
    for axis in range(data.rank):
        wide = _along(importer, wide, axis, window, fold)
    return combine_with_start(importer, wide, start, fold)


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
    call = _POOLS[fold.name][len(spatial)](
        importer.full(data).expr,
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
    area = Tensor.constant(np.array(math.prod(sizes), numpy_dtype(result.dtype)))
    return importer.elementwise([result, area], result.shape, np.multiply, relax.op.multiply, result.dtype)


def _along(importer: Importer, data: Tensor, axis: int, window: Window, fold: Fold) -> Tensor:
    """Reduce the windows' elements along one axis. Windows of 1, 2, 4, ... elements are combined to windows
    of their size: 5 are 1 and 4."""
    size, stride, dilation = window.sizes[axis], window.strides[axis], window.dilations[axis]
    count = data.shape[axis] - (size - 1) * dilation
    found: Tensor | None = None
    done, width = 0, 1
    while True:
        if size & width:
            more = take_part(importer, data, axis, done * dilation, count)
            found = more if found is None else fold.of(importer, found, more)
            done += width
        if done == size:
            return take_part(importer, found or data, axis, 0, (count - 1) // stride + 1, stride)
        left = data.shape[axis] - width * dilation
        data = fold.of(
            importer,
            take_part(importer, data, axis, 0, left),
            take_part(importer, data, axis, width * dilation, left),
        )
        width *= 2


def _select_and_scatter(importer: Importer, op: Any) -> Tensor:
    """Add each element of the source to the element that its window selects, as the gradient of pooling does.

    x = [1, 3, 2, 0], windows of 2 elements, source = [5, 7]  ->  [0, 5, 7, 0]
    """
    data, source, start = importer.operands(op)
    fold = fold_of(op.regions[1], data.dtype)
    direction = _direction(op.regions[0])
    if fold is None or fold.name != "add" or direction is None or data.dtype == "bool":
        raise UnsupportedOperator(
            "windows select only by a comparison of their elements, and only sums of numbers are scattered"
        )
    ones = [1] * data.rank
    window = Window(
        ints(op, "window_dimensions", ones),
        ints(op, "window_strides", ones),
        ones,
        pairs(op, "padding", data.rank),
    )
    if math.prod(window.sizes) > _MAX_SELECTED_FROM or min(itertools.chain(*window.edges), default=0) < 0:
        raise UnsupportedOperator(
            f"it selects from windows {window.sizes} with the padding {window.edges}: at most "
            f"{_MAX_SELECTED_FROM} elements are supported, and no negative padding"
        )
    # Sums of halves are rounded once.
    given = as_type(importer, source, "float32" if source.dtype in HALVES else source.dtype)
    zero = Tensor.constant(np.zeros((), numpy_dtype(given.dtype)))
    if 0 in source.shape:
        return combine_with_start(importer, Tensor(zero.value, data.shape), start, fold)
    graph = importer.graph
    place = _selected(importer, data, source.shape, window, direction)
    total = None
    for number, offset in enumerate(np.ndindex(*window.sizes)):
        chosen = graph.op(
            "Where", graph.op("Equal", place, np.int32(number)), importer.full(given), zero.value
        )
        spread = [
            (at - low, extent - (at - low) - (count - 1) * stride - 1)
            for at, (low, _), extent, count, stride in zip(
                offset, window.edges, data.shape, source.shape, window.strides, strict=True
            )
        ]
        gaps = [stride - 1 for stride in window.strides]
        found = padded(importer, Tensor.of(chosen), zero, spread, gaps)
        total = found if total is None else fold.of(importer, total, found)
    assert total is not None
    return combine_with_start(importer, as_type(importer, total, data.dtype), start, fold)


def _selected(importer: Importer, data: Tensor, shape: Shape, window: Window, direction: str) -> Value:
    """Return the index of the element that each window selects: the first one for which the comparison with
    all later elements is true. Padding isn't selected.
    """
    graph, nothing = importer.graph, Tensor.constant(np.zeros((), numpy_dtype(data.dtype)))
    wide = padded(importer, data, nothing, window.edges, [0] * data.rank)
    inside = np.pad(np.ones(data.shape, bool), window.edges)
    best: Value | None = None
    place, is_known = Value(constant=np.zeros(shape, np.int32)), np.zeros(shape, bool)
    for number, offset in enumerate(np.ndindex(*window.sizes)):
        cuts = tuple(
            slice(at, at + (count - 1) * stride + 1, stride)
            for at, count, stride in zip(offset, shape, window.strides, strict=True)
        )
        here, is_inside = importer.full(sliced(importer, wide, cuts)), inside[cuts]
        if best is None:
            best = here
        else:
            stays = importer.elementwise(
                [Tensor.of(best), Tensor.of(here)], shape, *DIRECTIONS[direction], "bool"
            )
            keeps = graph.op("Or", graph.op("And", stays.value, is_known), ~is_inside)
            best = graph.op("Where", keeps, best, here)
            place = graph.op("Where", keeps, place, np.int32(number))
        is_known = is_known | is_inside
    return place


def _direction(region: Any) -> str | None:
    """Return the region's only operation, a comparison of two elements."""
    block = region.blocks[0]
    operations = [op.operation for op in block.operations]
    if len(operations) != 2 or operations[0].name != "stablehlo.compare":
        return None
    if list(operations[0].operands) != list(block.arguments):
        return None
    attribute = operations[0].attributes["comparison_direction"]
    return str(mlir("dialects.stablehlo").ComparisonDirectionAttr(attribute).value)


CONVERTERS: Mapping[str, Converter] = {
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}
