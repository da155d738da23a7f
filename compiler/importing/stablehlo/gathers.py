"""Gather and scatter: windows of a tensor, at places that other tensors name.

The addressed axes come first and are merged into one axis. Each window is then some elements along that axis,
and all of the other axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.stablehlo.attributes import ints, mlir
from compiler.importing.stablehlo.elementwise import as_index, as_type
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.stablehlo.movement import reshaped, transposed
from compiler.importing.stablehlo.reductions import fold_of
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

_SCATTERS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}


@dataclass(frozen=True)
class _Windows:
    """The windows of a gather or scatter.

    `moved` are the axes of the tensor that places are of, `batches` pairs of axes of the tensor and of the
    places that go together, `offsets` the axes of the windows in the other tensor, one for each axis of the
    first that isn't `dropped`.
    """

    shape: Sequence[int]
    sizes: Sequence[int]
    moved: Sequence[int]
    batches: Sequence[tuple[int, int]]
    dropped: Sequence[int]
    offsets: Sequence[int]
    vector_axis: int

    @property
    def addressed(self) -> list[int]:
        """The axes along which a window has only some elements."""
        named = {*self.moved, *self.dropped}
        axes = range(len(self.shape))
        return [axis for axis in axes if axis in named or self.sizes[axis] != self.shape[axis]]

    @property
    def rest(self) -> list[int]:
        return [axis for axis in range(len(self.shape)) if axis not in self.addressed]

    @property
    def inside(self) -> list[int]:
        """The axes of the windows in the other tensor: those along addressed axes, then the rest."""
        kept = [axis for axis in range(len(self.shape)) if axis not in self.dropped]
        at = dict(zip(kept, self.offsets, strict=True))
        return [at[axis] for axis in (*self.addressed, *self.rest) if axis in at]

    def places(self, importer: Importer, starts: Tensor) -> tuple[Value, Value]:
        """Return the position along the merged axis of each element of each place's window. Also return
        whether the window lies within the tensor."""
        graph = importer.graph
        indices = importer.full(as_index(importer, starts))
        if self.vector_axis == len(starts.shape):
            indices = graph.op("Unsqueeze", indices, np.array([self.vector_axis]))
        rank = len(indices.shape) - 1
        others = [axis for axis in range(rank + 1) if axis != self.vector_axis]
        grid = [indices.shape[axis] for axis in others]
        inside = [axis for axis in self.addressed if axis not in self.dropped]
        shape = [*grid, *(self.sizes[axis] for axis in inside)]
        total = graph.value(np.zeros([1] * len(shape), np.int64))
        within = graph.value(np.ones([1] * len(grid), np.bool_))
        stride = 1
        for axis in reversed(self.addressed):
            extent, size = self.shape[axis], self.sizes[axis]
            batch = next((own for each, own in self.batches if each == axis), None)
            if batch is not None:
                # Axes of the places are counted without the axis of the vectors.
                at = others.index(batch)
                steps = np.arange(extent) * stride
                total = graph.op("Add", total, _along(steps, at, len(shape)))
            elif axis in self.moved:
                vector = np.array([self.moved.index(axis)])
                begin = graph.op("Gather", indices, vector, axis=self.vector_axis)
                begin = graph.op("Squeeze", begin, np.array([self.vector_axis]))
                safe = graph.op("Clip", begin, np.int64(0), np.int64(extent - size))
                within = graph.op("And", within, graph.op("Equal", safe, begin))
                far = graph.op("Mul", safe, np.int64(stride)) if stride > 1 else safe
                far = graph.op("Reshape", far, np.array([*grid, *[1] * len(inside)]))
                total = graph.op("Add", total, far)
            if axis in inside and size > 1:
                steps = np.arange(size) * stride
                total = graph.op("Add", total, _along(steps, len(grid) + inside.index(axis), len(shape)))
            stride *= extent
        return graph.op("Expand", total, np.array(shape)), graph.op("Expand", within, np.array(grid))

    def flat(self, importer: Importer, tensor: Tensor) -> Tensor:
        """Return the tensor with its addressed axes first, as one."""
        tensor = transposed(importer, tensor, [*self.addressed, *self.rest])
        length = math.prod(self.shape[axis] for axis in self.addressed)
        return reshaped(importer, tensor, [length, *(self.shape[axis] for axis in self.rest)])


def _along(steps: Any, axis: int, rank: int) -> Any:
    return steps.reshape([-1 if k == axis else 1 for k in range(rank)])


def _gather(importer: Importer, op: Any) -> Tensor:
    data, starts = importer.operands(op)
    dims = mlir("dialects.stablehlo").GatherDimensionNumbers(op.attributes["dimension_numbers"])
    batches = list(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True))
    windows = _Windows(
        data.shape,
        ints(op, "slice_sizes"),
        list(dims.start_index_map),
        batches,
        [*dims.collapsed_slice_dims, *dims.operand_batching_dims],
        list(dims.offset_dims),
        dims.index_vector_dim,
    )
    places, _ = windows.places(importer, starts)
    # One addressed axis stays where it is: that is a gather of TVM's own.
    if len(windows.addressed) == 1:
        (axis,) = windows.addressed
        found = importer.emit(relax.op.take(importer.full(data).expr, places.expr, axis=axis, mode="clip"))
        own = [*range(axis, axis + len(places.shape))]
        before = [*range(axis)]
        after = [*range(axis + len(places.shape), found.rank)]
        now = [*own, *before, *after]
    else:
        flat = windows.flat(importer, data)
        found = importer.emit(relax.op.take(importer.full(flat).expr, places.expr, axis=0, mode="clip"))
        now = [*range(found.rank)]
    outside = [axis for axis in range(found.rank) if axis not in windows.inside]
    return transposed(importer, found, [now[k] for k in np.argsort([*outside, *windows.inside])])


def _scatter(importer: Importer, op: Any) -> Tensor:
    operands = importer.operands(op)
    if len(operands) != 3:
        raise UnsupportedOperator("only one tensor at a time can be scattered into")
    data, starts, updates = operands
    if data.dtype == "bool":
        # Booleans are compared as bytes.
        data, updates = (as_type(importer, each, "int8") for each in (data, updates))
    dims = mlir("dialects.stablehlo").ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    batches = list(zip(dims.input_batching_dims, dims.scatter_indices_batching_dims, strict=True))
    dropped = [*dims.inserted_window_dims, *dims.input_batching_dims]
    kept = [axis for axis in range(data.rank) if axis not in dropped]
    sizes = [1] * data.rank
    for axis, at in zip(kept, dims.update_window_dims, strict=True):
        sizes[axis] = updates.shape[at]
    windows = _Windows(
        data.shape,
        sizes,
        list(dims.scattered_dims_to_operand_dims),
        batches,
        dropped,
        list(dims.update_window_dims),
        dims.index_vector_dim,
    )
    graph = importer.graph
    places, within = windows.places(importer, starts)
    flat = importer.full(windows.flat(importer, data))
    length = flat.shape[0]
    # Elements outside of the tensor are written after its end, and cut off.
    shape = [*within.shape, *[1] * (len(places.shape) - len(within.shape))]
    places = graph.op("Where", graph.op("Reshape", within, np.array(shape)), places, np.int64(length))
    spare = np.zeros((1, *flat.shape[1:]), numpy_dtype(flat.dtype))
    wide = graph.op("Concat", flat, spare, axis=0)
    outside = [axis for axis in range(updates.rank) if axis not in windows.inside]
    rows = importer.full(transposed(importer, updates, [*outside, *windows.inside]))
    at = graph.op("Unsqueeze", places, np.array([len(places.shape)]))
    written = graph.op("ScatterND", wide, at, rows, reduction=_reduction(op, operands[0].dtype))
    kept_rows = graph.op("Slice", written, np.array([0]), np.array([length]), np.array([0]))
    order = [*windows.addressed, *windows.rest]
    result = reshaped(importer, Tensor.of(kept_rows), [data.shape[axis] for axis in order])
    result = transposed(importer, result, np.argsort(order).tolist())
    return as_type(importer, result, operands[0].dtype)


def _reduction(op: Any, dtype: str) -> str:
    """Return how elements are written, as ONNX names it."""
    block = op.regions[0].blocks[0]
    operations = [each.operation for each in block.operations]
    if len(operations) == 1 and list(operations[0].operands) == [block.arguments[1]]:
        return "none"
    fold = fold_of(op.regions[0], dtype)
    if fold is None or fold.name not in _SCATTERS:
        raise UnsupportedOperator(
            "elements can be replaced, added, multiplied and compared where they are scattered"
        )
    return _SCATTERS[fold.name]


CONVERTERS: Mapping[str, Converter] = {"stablehlo.gather": _gather, "stablehlo.scatter": _scatter}
