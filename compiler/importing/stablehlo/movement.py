"""Operations that move elements: shapes, slices, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.stablehlo.attributes import elements, ints, number, tensor_type
from compiler.importing.stablehlo.elementwise import as_index
from compiler.importing.stablehlo.importer import (
    ConcatenatedTensors,
    Converter,
    Importer,
    Tensor,
    TensorOrParts,
)
from compiler.importing.values import Value, numpy_dtype


def _constant(_importer: Importer, op: Any) -> Tensor:
    return Tensor.constant(*elements(op.attributes["value"]))


def _iota(_importer: Importer, op: Any) -> Tensor:
    shape, dtype = tensor_type(op.results[0].type)
    axis = number(op, "iota_dimension")
    places = np.arange(shape[axis]).astype(numpy_dtype(dtype))
    return Tensor.constant(places.reshape([-1 if k == axis else 1 for k in range(len(shape))]), shape)


def _broadcast_in_dim(importer: Importer, op: Any) -> Tensor:
    operand, *_ = importer.operands(op)
    shape, _ = tensor_type(op.results[0].type)
    axes = ints(op, "broadcast_dimensions")
    order = sorted(range(len(axes)), key=axes.__getitem__)
    value = transposed(importer, operand, order).value
    alone = [1] * len(shape)
    for k, extent in zip(order, value.shape, strict=True):
        alone[axes[k]] = extent
    return Tensor(_reshaped(importer, value, alone), shape)


def _broadcast(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    shape, _ = tensor_type(op.results[0].type)
    added = len(shape) - operand.rank
    return Tensor(_reshaped(importer, operand.value, [*[1] * added, *operand.value.shape]), shape)


def _reshape(importer: Importer, op: Any) -> Tensor:
    operand, *_ = importer.operands(op)
    return reshaped(importer, operand, tensor_type(op.results[0].type)[0])


def reshaped(importer: Importer, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if tensor.value.size == 1:
        return Tensor(_reshaped(importer, tensor.value, [1] * len(shape)), tuple(shape))
    return Tensor.of(_reshaped(importer, importer.full(tensor), shape))


def _reshaped(importer: Importer, value: Value, shape: Sequence[int]) -> Value:
    if value.shape == tuple(shape):
        return value
    if value.constant is not None:
        return Value(constant=value.constant.reshape(shape))
    return importer.graph.emit(relax.op.reshape(value.expr, shape))


def _transpose(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    return transposed(importer, operand, ints(op, "permutation"))


def transposed(importer: Importer, tensor: Tensor, order: Sequence[int]) -> Tensor:
    order = list(order)
    if order == [*range(tensor.rank)]:
        return tensor
    value = tensor.value
    if value.constant is not None:
        value = Value(constant=value.constant.transpose(order))
    elif [k for k in order if value.shape[k] > 1] == [k for k in range(value.rank) if value.shape[k] > 1]:
        value = _reshaped(importer, value, [value.shape[k] for k in order])
    else:
        value = importer.graph.emit(relax.op.permute_dims(value.expr, order))
    return Tensor(value, tuple(tensor.shape[k] for k in order))


def _reverse(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    return reversed_along(importer, operand, ints(op, "dimensions"))


def reversed_along(importer: Importer, tensor: Tensor, axes: Sequence[int]) -> Tensor:
    value = tensor.value
    axes = [axis for axis in axes if value.shape[axis] > 1]
    if value.constant is not None:
        return Tensor(Value(constant=np.flip(value.constant, tuple(axes))), tensor.shape)
    for axis in axes:
        value = importer.graph.emit(relax.op.flip(value.expr, axis))
    return Tensor(value, tensor.shape)


def _slice(importer: Importer, op: Any) -> Tensor:
    (operand,) = importer.operands(op)
    starts, limits = ints(op, "start_indices"), ints(op, "limit_indices")
    strides = ints(op, "strides", [1] * operand.rank)
    return sliced(importer, operand, list(map(slice, starts, limits, strides)))


def sliced(importer: Importer, tensor: Tensor, slices: Sequence[slice]) -> Tensor:
    """Slice a tensor along each axis. The bounds are constants, and no stride is negative."""
    shape = tuple(len(range(*cut.indices(extent))) for cut, extent in zip(slices, tensor.shape, strict=True))
    value = tensor.value
    axes = [
        axis
        for axis, extent in enumerate(value.shape)
        if (extent > 1 or shape[axis] == 0) and shape[axis] != tensor.shape[axis]
    ]
    if value.constant is not None:
        cuts = tuple(slices[axis] if axis in axes else slice(None) for axis in range(value.rank))
        return Tensor(Value(constant=value.constant[cuts]), shape)
    if axes:
        bounds = [
            list(part) for part in zip(*(slices[k].indices(tensor.shape[k]) for k in axes), strict=True)
        ]
        value = importer.graph.emit(relax.op.strided_slice(value.expr, axes, *bounds))
    return Tensor(value, shape)


def _dynamic_slice(importer: Importer, op: Any) -> Tensor:
    operand, *starts = importer.operands(op)
    sizes = ints(op, "slice_sizes")
    begins = [_begin(*each) for each in zip(starts, sizes, operand.shape, strict=True)]
    partial = [axis for axis, size in enumerate(sizes) if size < operand.shape[axis]]
    if importer.in_loop and operand.value.constant is None and len(partial) == 1:
        (axis,) = partial
        row = begins[axis]
        if sizes[axis] == 1 and row is not None:
            return importer.rows(operand, axis)[row]
    cuts = [
        slice(None) if begin is None else slice(begin, begin + size)
        for begin, size in zip(begins, sizes, strict=True)
    ]
    result = sliced(importer, operand, cuts)
    for axis in partial:
        if begins[axis] is None:
            places = _places(importer, starts[axis], sizes[axis], operand.shape[axis])
            taken = relax.op.take(importer.full(result).expr, places.expr, axis=axis, mode="clip")
            result = importer.emit(taken)
    return result


def _begin(start: Tensor, size: int, extent: int) -> int | None:
    """Return the start of a slice along an axis, clamped into the axis; None if it depends on the data."""
    if size == extent:
        return 0
    return None if start.scalar is None else min(max(int(start.scalar), 0), extent - size)


def _places(importer: Importer, start: Tensor, size: int, extent: int) -> Value:
    """Return the indices of a slice whose start depends on the data, clamped into the axis."""
    graph = importer.graph
    begin = as_index(importer, start).value
    begin = graph.op("Clip", begin, np.int64(0), np.int64(extent - size))
    return graph.op("Add", graph.op("Reshape", begin, np.array([1])), np.arange(size))


def _dynamic_update_slice(importer: Importer, op: Any) -> TensorOrParts:
    given, *_ = importer.given(op)
    _, update, *starts = importer.operands(op)
    partial = [axis for axis, extent in enumerate(given.shape) if update.shape[axis] < extent]
    if not partial:
        return update
    if len(partial) == 1:
        (axis,) = partial
        begin = _begin(starts[axis], update.shape[axis], given.shape[axis])
        if begin is not None:
            return _written(importer, given, update, axis, begin)
    return _written_anywhere(importer, importer.joined(given), update, starts)


def _written(
    importer: Importer, given: TensorOrParts, update: Tensor, axis: int, begin: int
) -> ConcatenatedTensors:
    """Return a tensor with the update in its place along an axis; it isn't joined before it is read."""
    before = (
        given.parts
        if isinstance(given, ConcatenatedTensors) and given.axis == axis
        else (importer.joined(given),)
    )
    end = begin + update.shape[axis]
    left: list[Tensor] = []
    right: list[Tensor] = []
    at = 0
    for part in before:
        extent = part.shape[axis]
        for side, cut in (
            (left, slice(0, min(max(begin - at, 0), extent))),
            (right, slice(min(max(end - at, 0), extent), extent)),
        ):
            if cut.start < cut.stop:
                side.append(
                    sliced(importer, part, [cut if k == axis else slice(None) for k in range(part.rank)])
                )
        at += extent
    return ConcatenatedTensors((*left, update, *right), axis)


def _written_anywhere(importer: Importer, data: Tensor, update: Tensor, starts: Sequence[Tensor]) -> Tensor:
    """Return a tensor with the update in a place that the data says.

    y[i] = update[i - start] where start <= i < start + n, else x[i]
    """
    graph = importer.graph
    moved, is_new = importer.full(update), None
    for axis, (extent, size, start) in enumerate(zip(data.shape, update.shape, starts, strict=True)):
        if size == extent:
            continue
        begin = _places(importer, start, size, extent)
        begin = graph.op("Slice", begin, np.array([0]), np.array([1]))
        offsets = graph.op("Sub", np.arange(extent), begin)
        inside = graph.op(
            "And", graph.op("GreaterOrEqual", offsets, np.int64(0)), graph.op("Less", offsets, np.int64(size))
        )
        inside = graph.op("Reshape", inside, np.array([-1 if k == axis else 1 for k in range(data.rank)]))
        is_new = inside if is_new is None else graph.op("And", is_new, inside)
        places = graph.op("Clip", offsets, np.int64(0), np.int64(size - 1))
        moved = graph.emit(relax.op.take(moved.expr, places.expr, axis=axis, mode="clip"))
    return Tensor.of(graph.op("Where", is_new, moved, importer.full(data)))


def _concatenate(importer: Importer, op: Any) -> Tensor:
    axis = number(op, "dimension")
    parts = [part for part in importer.operands(op) if part.shape[axis]]
    return importer.joined(ConcatenatedTensors(tuple(parts), axis))


def _pad(importer: Importer, op: Any) -> Tensor:
    data, filling = importer.operands(op)
    low, high, interior = (
        ints(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return padded(importer, data, filling, list(zip(low, high, strict=True)), interior)


def padded(
    importer: Importer,
    data: Tensor,
    filling: Tensor,
    edges: Sequence[tuple[int, int]],
    interior: Sequence[int],
) -> Tensor:
    """Return a tensor with elements added between its own and at its edges; less than none cuts some off.

    Elements are added behind each one by an axis of their own, and cut off again behind the last.
    """
    graph = importer.graph
    value, shape = importer.full(data), list(data.shape)
    for axis, more in enumerate(interior):
        if more and shape[axis] > 1:
            apart = graph.op("Reshape", value, np.array([*shape[: axis + 1], 1, *shape[axis + 1 :]]))
            widths = np.zeros((2, len(shape) + 1), np.int64)
            widths[1, axis + 1] = more
            wide = graph.op("Pad", apart, widths.ravel(), filling.value)
            shape[axis] *= more + 1
            value = graph.op("Reshape", wide, np.array(shape))
            shape[axis] -= more
            value = graph.op("Slice", value, np.array([0]), np.array([shape[axis]]), np.array([axis]))
    if any(width for edge in edges for width in edge):
        value = graph.op("Pad", value, np.array(edges).T.ravel(), filling.value)
    return Tensor.of(value)


CONVERTERS: Mapping[str, Converter] = {
    "stablehlo.broadcast": _broadcast,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.constant": _constant,
    # Their last operand is the shape of the result.
    "stablehlo.dynamic_broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.dynamic_iota": _iota,
    "stablehlo.dynamic_reshape": _reshape,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.slice": _slice,
    "stablehlo.transpose": _transpose,
}
