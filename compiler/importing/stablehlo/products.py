"""Products of matrices, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.stablehlo.attributes import ints, mlir, number, pairs, tensor_type
from compiler.importing.stablehlo.elementwise import as_type
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.stablehlo.movement import padded, reshaped, reversed_along, transposed
from compiler.importing.values import UnsupportedOperator, numpy_dtype

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


@dataclass(frozen=True)
class _Factor:
    """One of two tensors that are multiplied: which of its axes both have and keep, and which are summed."""

    tensor: Tensor
    batch: list[int]
    depth: list[int]

    @property
    def own(self) -> list[int]:
        return [axis for axis in range(self.tensor.rank) if axis not in (*self.batch, *self.depth)]

    def extents(self, axes: Sequence[int]) -> list[int]:
        return [self.tensor.shape[axis] for axis in axes]

    def is_moved(self, order: Sequence[int]) -> bool:
        """Return whether this order of its axes costs a copy."""
        return self.tensor.value.constant is None and [*order] != [*range(self.tensor.rank)]


def _dot_general(importer: Importer, op: Any) -> Tensor:
    dims = mlir("dialects.stablehlo").DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = importer.operands(op)
    return _product(
        importer,
        _Factor(left, list(dims.lhs_batching_dimensions), list(dims.lhs_contracting_dimensions)),
        _Factor(right, list(dims.rhs_batching_dimensions), list(dims.rhs_contracting_dimensions)),
        tensor_type(op.results[0].type)[1],
    )


def _dot(importer: Importer, op: Any) -> Tensor:
    left, right = importer.operands(op)
    factors = _Factor(left, [], [left.rank - 1]), _Factor(right, [], [0])
    return _product(importer, *factors, tensor_type(op.results[0].type)[1])


def _product(importer: Importer, left: _Factor, right: _Factor, dtype: str) -> Tensor:
    """Multiply matrices. If that copies fewer factors, the product is computed in the other order and
    transposed, because JAX puts either operand first.

        left: (batch..., rows..., depth), right: (batch..., depth, columns) -> (batch..., rows..., columns)
    """
    plain = left.is_moved([*left.batch, *left.own, *left.depth]) + right.is_moved(
        [*right.batch, *right.depth, *right.own]
    )
    turned = right.is_moved([*right.batch, *right.own, *right.depth]) + left.is_moved(
        [*left.batch, *left.depth, *left.own]
    )
    if plain <= turned:
        return _multiplied(importer, left, right, dtype)
    result = _multiplied(importer, right, left, dtype)
    count, columns = len(left.batch), len(right.own)
    order = [*range(count), *range(count + columns, result.rank), *range(count, count + columns)]
    return transposed(importer, result, order)


def _multiplied(importer: Importer, left: _Factor, right: _Factor, dtype: str) -> Tensor:
    shared, summed = left.extents(left.batch), math.prod(left.extents(left.depth))
    rows, columns = left.extents(left.own), right.extents(right.own)
    # With batches, matrices have two axes of their own.
    own = [math.prod(rows)] if shared or not rows else rows
    a = transposed(importer, left.tensor, [*left.batch, *left.own, *left.depth])
    a = reshaped(importer, a, [*shared, *own, summed])
    b = transposed(importer, right.tensor, [*right.batch, *right.depth, *right.own])
    b = reshaped(importer, b, [*shared, summed, math.prod(columns)])
    if dtype == "bool":
        # Whether any product is true is whether their number isn't zero.
        a, b = (as_type(importer, each, "int32") for each in (a, b))
        counts = importer.emit(relax.op.matmul(importer.full(a).expr, importer.full(b).expr))
        return as_type(importer, reshaped(importer, counts, [*shared, *rows, *columns]), dtype)
    out_dtype = None if dtype == a.dtype == b.dtype else dtype
    product = relax.op.matmul(importer.full(a).expr, importer.full(b).expr, out_dtype)
    return reshaped(importer, importer.emit(product), [*shared, *rows, *columns])


def _convolution(importer: Importer, op: Any) -> Tensor:
    """Import a convolution with the layout that it has, if that is channels-last or channels-first, else
    channels-last."""
    dims = mlir("dialects.stablehlo").ConvDimensionNumbers(op.attributes["dimension_numbers"])
    data, kernel = importer.operands(op)
    _, dtype = tensor_type(op.results[0].type)
    count = len(dims.input_spatial_dimensions)
    if count not in _CONVOLUTIONS:
        raise UnsupportedOperator("only convolutions along one to three axes are supported")
    ones = [1] * count
    edges, strides = pairs(op, "padding", count), ints(op, "window_strides", ones)
    spread, dilations = ints(op, "lhs_dilation", ones), ints(op, "rhs_dilation", ones)
    groups, batch_groups = (number(op, f"{kind}_group_count", 1) for kind in ("feature", "batch"))
    if batch_groups > 1:
        data = _groups_as_features(
            importer, data, dims.input_batch_dimension, dims.input_feature_dimension, batch_groups
        )
        groups = batch_groups
    reverses = ints(op, "window_reversal", [0] * count)
    reversed_axes = [axis for axis, by in zip(dims.kernel_spatial_dimensions, reverses, strict=True) if by]
    kernel = reversed_along(importer, kernel, reversed_axes)
    inputs = _Axes(dims.input_batch_dimension, dims.input_feature_dimension, dims.input_spatial_dimensions)
    outputs = _Axes(
        dims.output_batch_dimension, dims.output_feature_dimension, dims.output_spatial_dimensions
    )
    kernels = _Axes(
        dims.kernel_output_feature_dimension,
        dims.kernel_input_feature_dimension,
        dims.kernel_spatial_dimensions,
    )
    plain = strides == dilations == ones and groups == 1 and data.dtype == kernel.dtype == dtype
    if plain and any(by > 1 for by in spread):
        found = _transposed_convolution(
            importer,
            transposed(importer, data, inputs.channels_first),
            transposed(importer, kernel, [kernels.second, kernels.first, *kernels.spatial]),
            spread,
            edges,
        )
        if found is not None:
            return transposed(importer, found, np.argsort(outputs.channels_first).tolist())
    letters = "DHW"[-count:]
    as_it_is = [*range(count + 2)]
    if inputs.channels_first == outputs.channels_first == as_it_is:
        layouts, spatial = (f"NC{letters}", f"OI{letters}"), 2
        order, kernel_order = as_it_is, kernels.channels_first
        result_order = as_it_is
    else:
        layouts, spatial = (f"N{letters}C", f"{letters}IO"), 1
        order, kernel_order = inputs.channels_last, [*kernels.spatial, kernels.second, kernels.first]
        result_order = np.argsort(outputs.channels_last).tolist()
    data = transposed(importer, data, order)
    between, cut = [0] * (count + 2), [(0, 0)] * (count + 2)
    between[spatial : spatial + count] = [by - 1 for by in spread]
    cut[spatial : spatial + count] = [(min(low, 0), min(high, 0)) for low, high in edges]
    zero = Tensor.constant(np.zeros((), numpy_dtype(data.dtype)))
    data = padded(importer, data, zero, cut, between)
    call = _CONVOLUTIONS[count](
        importer.full(data).expr,
        importer.full(transposed(importer, kernel, kernel_order)).expr,
        strides=strides,
        padding=[*(max(low, 0) for low, _ in edges), *(max(high, 0) for _, high in edges)],
        dilation=dilations,
        groups=groups,
        data_layout=layouts[0],
        kernel_layout=layouts[1],
        out_layout=layouts[0],
        out_dtype=None if dtype == data.dtype == kernel.dtype else dtype,
    )
    return transposed(importer, importer.emit(call), result_order)


def _groups_as_features(importer: Importer, data: Tensor, batch: int, feature: int, count: int) -> Tensor:
    """Move groups of the batch to the features: each then has features of its own, as the groups of a grouped
    convolution have.

        (group * n, ..., c) -> (group, n, ..., c) -> (n, ..., group, c) -> (n, ..., group * c)
    """
    shape = list(data.shape)
    split = reshaped(importer, data, [*shape[:batch], count, shape[batch] // count, *shape[batch + 1 :]])
    others = [axis for axis in range(split.rank) if axis != batch]
    moved = transposed(importer, split, [*others[:feature], batch, *others[feature:]])
    shape[batch] //= count
    shape[feature] *= count
    return reshaped(importer, moved, shape)


@dataclass(frozen=True)
class _Axes:
    """The positions of an operand's axes: batch and channels, or a kernel's channels of the result and of the
    data, then the spatial axes."""

    first: int
    second: int
    spatial: Sequence[int]

    @property
    def channels_first(self) -> list[int]:
        return [self.first, self.second, *self.spatial]

    @property
    def channels_last(self) -> list[int]:
        return [self.first, *self.spatial, self.second]


def _transposed_convolution(
    importer: Importer,
    data: Tensor,
    kernel: Tensor,
    spread: Sequence[int],
    edges: Sequence[tuple[int, int]],
) -> Tensor | None:
    """Import a convolution of data with zeros in between, channels-first, as the transposed convolution that
    it is: without multiplying the zeros. Return None for padding that none has."""
    extents = kernel.shape[2:]
    lows = [extent - 1 - low for extent, (low, _) in zip(extents, edges, strict=True)]
    highs = [extent - 1 - high for extent, (_, high) in zip(extents, edges, strict=True)]
    more = [max(-high, 0) for high in highs]
    if min(lows) < 0 or any(extra >= by for extra, by in zip(more, spread, strict=True)):
        return None
    kernel = reversed_along(importer, kernel, range(2, kernel.rank))
    found = importer.graph.op(
        "ConvTranspose",
        importer.full(data),
        importer.full(kernel),
        strides=list(spread),
        pads=[*lows, *(max(high, 0) for high in highs)],
        output_padding=more,
    )
    return Tensor.of(found)


CONVERTERS: Mapping[str, Converter] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
}
