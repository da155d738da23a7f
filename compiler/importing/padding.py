"""Padded values: the data decides how many of their rows are valid.

Kernels are compiled for one shape. An operator that selects rows returns the maximum number: first the valid
rows in order, then invalid ones. Operators that compute each row separately are imported normally. Operators
that would mix rows, such as a sum of all rows, are refused. `Shape` counts the valid rows, `TopK` chooses
among them, and `Slice` keeps the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.importing.spec import Shape
from compiler.importing.values import Array, Node, Operators, Padding, Value, numpy_dtype

NO_ROW = -1


# The padding of a node's padded inputs, by position.
Paddings = Mapping[int, Padding]


def convert_padded(
    graph: Operators, node: Node, plainly: Callable[[Node], Sequence[Value | None]]
) -> Sequence[Value | None] | None:
    """Import a node that reads padded values; `plainly` imports it as if all rows were valid. Return None if
    the node may mix rows."""
    padded = {at: value.padding for at, value in enumerate(node.inputs) if value and value.padding}
    plain = replace(node, inputs=tuple(value and value.with_padding(None) for value in node.inputs))
    if node.domain != "":
        return None
    if node.kind in _COUNTING and 0 in padded:
        results = _COUNTING[node.kind](graph, plain, padded)
        if results is not None:
            return results
    rule = _ROW_BY_ROW.get(node.kind)
    count = next(iter(padded.values())).count
    if rule is None or any(padding.count is not count for padding in padded.values()):
        return None
    at, harmless = _HARMLESS.get(node.kind, (-1, 0))
    if at in padded and "int" in plain.input(at).dtype:
        filled = _filled(graph, plain.input(at), padded[at], harmless)
        plain = replace(plain, inputs=(*plain.inputs[:at], filled, *plain.inputs[at + 1 :]))
    computed = plainly(plain)
    shape = next(result.shape for result in computed if result is not None)
    axes = {rule(plain, at, padding.axis, shape) for at, padding in padded.items()}
    axis = axes.pop()
    if axes or axis is None:
        return None
    extents = {plain.input(at).shape[padding.axis] for at, padding in padded.items()}
    if extents != {shape[axis]}:
        if node.kind != "Slice":
            return None
        # The part's count differs from the whole's, so the two can't be combined any more.
        count = graph.op("Min", count, np.int64(shape[axis]))
    return [result and result.with_padding(Padding(axis, count)) for result in computed]


def fill_invalid_rows(graph: Operators, value: Value) -> Value:
    """Return the value with a marker in its invalid rows."""
    if value.padding is None:
        return value
    plain = value.with_padding(None)
    return _filled(graph, plain, value.padding, no_row(value.dtype)).with_padding(value.padding)


def no_row(dtype: str) -> int:
    """Return the marker of invalid rows in outputs of a type."""
    return 0 if dtype == "bool" or dtype.startswith("uint") else NO_ROW


def valid_part(output: Array, wanted: Array) -> Array:
    """Cut an output to the wanted shape if only invalid rows are cut off; otherwise return all of it."""
    if output.shape == wanted.shape or output.ndim != wanted.ndim:
        return output
    axis = next(k for k, extent in enumerate(wanted.shape) if extent != output.shape[k])
    part, rest = np.split(output, [wanted.shape[axis]], axis)
    return part if (rest == no_row(str(output.dtype))).all() else output


def _filled(graph: Operators, value: Value, padding: Padding, number: float) -> Value:
    """Return the value with a number in all rows that aren't valid."""
    shape = [-1 if axis == padding.axis else 1 for axis in range(value.rank)]
    places = np.arange(value.shape[padding.axis]).reshape(shape)
    is_valid = graph.op("Less", places, padding.count)
    return graph.op("Where", is_valid, value, np.array(number, numpy_dtype(value.dtype)))


def _shape(graph: Operators, node: Node, padded: Paddings) -> Sequence[Value]:
    padding = padded[0]
    extents: list[Any] = [np.array([extent]) for extent in node.input(0).shape]
    extents[padding.axis] = graph.op("Reshape", padding.count, np.array([1]))
    kept = extents[slice(node.attributes.get("start", 0), node.attributes.get("end"))]
    return [graph.op("Concat", *kept, axis=0) if kept else graph.value(np.empty(0, np.int64))]


def _taken(graph: Operators, node: Node, padded: Paddings) -> Sequence[Value] | None:
    """Take rows by their indices. Negative indices count from the last valid row."""
    data, places, padding = node.input(0), node.input(1), padded[0]
    axis = int(node.attributes.get("axis", 0)) % data.rank
    if axis != padding.axis or places.dtype not in ("int32", "int64"):
        return None
    wide = graph.op("CastLike", places, np.int64(0))
    from_end = graph.op("Add", wide, padding.count)
    positive = graph.op("Where", graph.op("Less", wide, np.int64(0)), from_end, wide)
    # For invalid rows, any index will do, but it must exist.
    inside = graph.op("Clip", positive, np.int64(0), np.int64(data.shape[axis] - 1))
    result = graph.op("Gather", data, inside, axis=axis)
    left = padded.get(1)
    return [result if left is None else result.with_padding(Padding(axis + left.axis, left.count))]


def _selected(graph: Operators, node: Node, padded: Paddings) -> Sequence[Value] | None:
    """Select among the valid boxes: scores of invalid boxes are below the threshold."""
    boxes, scores, *rest = (node.optional(position) for position in range(5))
    if padded.keys() != {0, 1} or (padded[0].axis, padded[1].axis) != (1, 2) or not boxes or not scores:
        return None
    if padded[0].count is not padded[1].count:
        return None
    limit, overlap, threshold = rest
    least = np.array([np.finfo(np.float32).min]) if threshold is None else threshold
    hidden = _filled(graph, scores, padded[1], -math.inf)
    is_centred = int(node.attributes.get("center_point_box", 0))
    inputs = boxes, hidden, limit, overlap, least
    return [graph.op("NonMaxSuppression", *inputs, center_point_box=is_centred)]


def _top_k(graph: Operators, node: Node, padded: Paddings) -> Sequence[Value] | None:
    """Sort invalid rows to the end. If the data decides how many are requested, sort all."""
    data, padding = node.input(0), padded[0]
    axis = int(node.attributes.get("axis", -1)) % data.rank
    # Older versions have the number in an attribute.
    if axis != padding.axis or node.opset < 11 or 1 in padded:
        return None
    wanted = graph.op("Reshape", node.input(1), np.array([], np.int64))
    most = data.shape[axis] if wanted.constant is None else int(wanted.constant)
    is_largest = int(node.attributes.get("largest", 1))
    if "float" in data.dtype:
        last = -math.inf if is_largest else math.inf
    else:
        last = np.iinfo(data.dtype).min if is_largest else np.iinfo(data.dtype).max
    data = _filled(graph, data, padding, last)
    results = graph.ops("TopK", 2, data, np.array([most]), axis=axis, largest=is_largest)
    left = Padding(axis, graph.op("Min", padding.count, wanted))
    return [result.with_padding(left) for result in results]


# Converters that need the number of valid rows of their first input; they return None if they don't need it.
_COUNTING: Mapping[str, Callable[[Operators, Node, Paddings], Sequence[Value] | None]] = {
    "Gather": _taken,
    "NonMaxSuppression": _selected,
    "Shape": _shape,
    "TopK": _top_k,
}
# Inputs whose integers also matter in invalid rows, by operator: their position, and a harmless integer.
# Indexed parts are read, so they must exist, and dividing the least integer by -1 crashes the process.
_HARMLESS: Mapping[str, tuple[int, int]] = {
    "Div": (1, 1),
    "Mod": (1, 1),
    "GatherElements": (1, 0),
    "GatherND": (1, 0),
    "RoiAlign": (2, 0),
}


# Each of these functions takes a node, the position and the padded axis of an input, and the result's shape.
# It returns the axis of the result along which rows are still apart, None if they are mixed.


def _broadcast(node: Node, at: int, axis: int, shape: Shape) -> int | None:
    return axis + len(shape) - node.input(at).rank


def _first_axis(_node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    return 0 if at == axis == 0 else None


def _regions(_node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    return 0 if at > 0 and axis == 0 else None


def _other_axis(node: Node, _at: int, axis: int, _shape: Shape) -> int | None:
    """Return the padded axis of the result of an operator along one axis; None if it mixes rows."""
    rank = node.input(0).rank
    # Softmax of older models covers all axes from one on, by default from the second.
    is_of_several = node.kind in _SOFTMAX and node.opset < 13
    is_of_first = node.kind in ("ArgMax", "ArgMin", "GatherElements", "Split")
    default = 1 if is_of_several else 0 if is_of_first else -1
    given = int(node.attributes.get("axis", default)) % rank
    mixed = range(given, rank) if is_of_several else [given]
    if axis in mixed:
        return None
    removed = node.kind in ("ArgMax", "ArgMin") and not node.attributes.get("keepdims", 1)
    return axis - (removed and given < axis)


def _concat(node: Node, _at: int, axis: int, _shape: Shape) -> int | None:
    return axis if axis != int(node.attributes["axis"]) % node.input(0).rank else None


def _reduce(node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    axes = _axes(node, node.input(0).rank)
    if at != 0 or not axes or axis in axes:
        return None
    return axis if node.attributes.get("keepdims", 1) else axis - sum(other < axis for other in axes)


def _squeeze(node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    axes = _axes(node, node.input(0).rank)
    return axis - sum(other < axis for other in axes) if at == 0 and axes and axis not in axes else None


def _unsqueeze(node: Node, at: int, axis: int, shape: Shape) -> int | None:
    added = _axes(node, len(shape))
    kept = [place for place in range(len(shape)) if place not in added]
    return kept[axis] if at == 0 else None


def _axes(node: Node, rank: int) -> list[int]:
    """Return the axes that a node names, in an attribute or an input; empty where it names none."""
    value = node.optional(1)
    axes = node.attributes.get("axes", []) if value is None else value.known("the axes").ravel().tolist()
    return [int(axis) % rank for axis in axes]


def _transpose(node: Node, _at: int, axis: int, shape: Shape) -> int | None:
    order = list(node.attributes.get("perm", reversed(range(len(shape)))))
    return order.index(axis)


def _reshape(node: Node, at: int, axis: int, shape: Shape) -> int | None:
    """Rows stay separate if the elements before and within them stay the same, and the shape leaves their
    number open."""
    if at != 0:
        return None
    before = node.input(0).shape
    wanted = node.input(1).known("the shape").ravel().tolist()
    for place, extent in enumerate(shape):
        is_open = wanted[place] == -1 or (wanted[place] == 0 and place == axis)
        in_place = math.prod(shape[:place]) == math.prod(before[:axis])
        if is_open and in_place and extent == before[axis]:
            return place
    return None


def _flatten(node: Node, _at: int, axis: int, _shape: Shape) -> int | None:
    return 0 if axis == 0 and int(node.attributes.get("axis", 1)) == 1 else None


def _slice(node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    """Slices of the first rows don't depend on the number of valid rows; slices of the last ones do."""
    if at != 0:
        return None
    if node.opset < 10:
        begins, ends = node.attributes["starts"], node.attributes["ends"]
        axes, steps = node.attributes.get("axes"), None
    else:
        begins, ends, axes, steps = (
            None if value is None else value.known("where it begins and ends").ravel().tolist()
            for value in map(node.optional, range(1, 5))
        )
    axes = range(len(begins)) if axes is None else [each % node.input(0).rank for each in axes]
    steps = [1] * len(begins) if steps is None else steps
    for begin, end, place, step in zip(begins, ends, axes, steps, strict=True):
        if place == axis and (begin != 0 or end < 0 or step != 1):
            return None
    return axis


def _gather(node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    along = int(node.attributes.get("axis", 0)) % node.input(0).rank
    if at == 1:
        return along + axis
    if axis == along:
        return None
    return axis if axis < along else axis - 1 + node.input(1).rank


def _gather_nd(node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    is_of_indices = at == 1 and axis < node.input(1).rank - 1
    return axis if is_of_indices and not node.attributes.get("batch_dims", 0) else None


def _matmul(node: Node, at: int, axis: int, shape: Shape) -> int | None:
    value = node.input(at)
    is_summed = axis == value.rank - 1 if at == 0 else axis == max(value.rank - 2, 0)
    if is_summed or min(value.rank, node.input(1 - at).rank) < 2:
        return None
    return axis + len(shape) - value.rank


def _gemm(node: Node, at: int, axis: int, _shape: Shape) -> int | None:
    return 0 if at == axis == 0 and not node.attributes.get("transA", 0) else None


_SOFTMAX = ("Hardmax", "LogSoftmax", "Softmax")
_ELEMENTWISE = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd"),
    *("BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh"),
    *("Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid"),
    *("HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean"),
    *("Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round"),
    *("Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tan"),
    *("Tanh", "ThresholdedRelu", "Where", "Xor"),
)
# Operators that compute each element of a batch separately.
_BATCHED = (
    *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool"),
    *("InstanceNormalization", "MaxPool"),
)
_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
_ROW_BY_ROW: Mapping[str, Callable[[Node, int, int, Shape], int | None]] = {
    **dict.fromkeys(_ELEMENTWISE, _broadcast),
    **dict.fromkeys(_BATCHED, _first_axis),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin", "GatherElements", "Split", "TopK", *_SOFTMAX), _other_axis),
    "Concat": _concat,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "RoiAlign": _regions,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
