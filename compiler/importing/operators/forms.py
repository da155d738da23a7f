"""Rewrite older forms of ONNX's operators as the newest forms.

Converters are written for the newest form of an operator. Before opset 7, binary operators aligned their
second operand by an attribute. Before opset 13, softmax flattened its input. Many inputs were attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators import quantized
from compiler.importing.values import Node, UnsupportedOperator, Value


def _binary(graph: Graph, node: Node) -> Value | None:
    """Before opset 7, `broadcast` aligns the second operand with the axes of the first from `axis` on."""
    data, other = node.input(0), node.input(1)
    if node.opset >= 7:
        return None
    if node.attributes.get("broadcast", 0):
        axis = int(node.attributes.get("axis", data.rank - other.rank)) % max(data.rank, 1)
        behind = data.rank - axis - other.rank
        if behind > 0:
            other = graph.op("Reshape", other, np.array([*other.shape, *[1] * behind], np.int64))
    elif data.shape != other.shape:
        raise UnsupportedOperator(
            f"before opset 7, operands of shapes {data.shape} and {other.shape} need broadcast=1"
        )
    return graph.op(node.kind, data, other)


def _batch_normalization(graph: Graph, node: Node) -> Value | None:
    """Before opset 9, `spatial=0` has statistics of every element, not of every channel."""
    if node.opset >= 9:
        return None
    if any(node.wants(position) for position in range(1, 5)):
        raise UnsupportedOperator("training isn't supported: remove all outputs but the first")
    data, scale, shift, mean, variance = (node.input(position) for position in range(5))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    if node.attributes.get("spatial", 1):
        return graph.op("BatchNormalization", data, scale, shift, mean, variance, epsilon=epsilon)
    deviation = graph.op("Sqrt", graph.op("Add", variance, np.array(epsilon, variance.dtype)))
    factor = graph.op("Div", scale, deviation)
    rest = graph.op("Sub", shift, graph.op("Mul", mean, factor))
    return graph.op("Add", graph.op("Mul", data, factor), rest)


def _cast(graph: Graph, node: Node) -> Value | None:
    """Before opset 6, types have names."""
    to = node.attributes.get("to")
    if not isinstance(to, str):
        return None
    return graph.op("Cast", node.input(0), to=onnx.TensorProto.DataType.Value(to.upper()))


def _concat(graph: Graph, node: Node) -> Value | None:
    if node.opset >= 4:
        return None
    return graph.op("Concat", *node.inputs, axis=int(node.attributes.get("axis", 1)))


def _dropout(graph: Graph, node: Node) -> list[Value] | None:
    """Before opset 12, ONNX Runtime's mask is false, and before opset 10 it has the type of the data."""
    if node.opset >= 12 or node.attributes.get("is_test") == 0:
        return None
    data = node.input(0)
    return [data, graph.value(np.zeros(data.shape, data.dtype if node.opset < 10 else np.bool_))]


def _reshape(graph: Graph, node: Node) -> Value | None:
    if node.opset >= 5:
        return None
    return graph.op("Reshape", node.input(0), np.array(node.attributes["shape"], np.int64))


def _pad(graph: Graph, node: Node) -> Value | None:
    if node.opset >= 11:
        return None
    pads = node.attributes["paddings" if node.opset < 2 else "pads"]
    data, mode = node.input(0), node.attributes.get("mode", "constant")
    filled = np.array(node.attributes.get("value", 0.0), data.dtype)
    return graph.op("Pad", data, np.array(pads, np.int64), filled, mode=mode)


def _split(graph: Graph, node: Node) -> list[Value] | None:
    if node.opset >= 13:
        return None
    data, axis = node.input(0), int(node.attributes.get("axis", 0))
    given = node.optional(1)
    sizes = node.attributes.get("split") if given is None else given.known("the sizes of the parts").tolist()
    count = len(node.outputs)
    if sizes is None:
        if data.shape[axis] % count:
            raise UnsupportedOperator(
                f"axis {axis} of extent {data.shape[axis]} can't be split into {count} equal parts"
            )
        sizes = [data.shape[axis] // count] * count
    return graph.ops("Split", count, data, np.array(sizes, np.int64), axis=axis)


def _with_axes(graph: Graph, node: Node) -> Value | None:
    """Before opset 13, the axes are an attribute. Bodies of ONNX's functions give one axis as a scalar."""
    if node.opset >= 13:
        given = node.optional(1)
        if given is None or given.constant is None or given.rank > 0:
            return None
        return graph.op(node.kind, node.input(0), given.constant.reshape(1))
    axes = node.attributes.get("axes")
    return graph.op(node.kind, node.input(0), None if axes is None else np.array(axes, np.int64))


def _softmax(graph: Graph, node: Node) -> Value | None:
    """Before opset 13, the axes from `axis` on are one."""
    if node.opset >= 13:
        return None
    data = node.input(0)
    axis = int(node.attributes.get("axis", 1))
    axis = axis + data.rank if axis < 0 else axis
    if axis == data.rank - 1:
        return graph.op(node.kind, data, axis=-1)
    rows = math.prod(data.shape[:axis]), math.prod(data.shape[axis:])
    flat = graph.op("Reshape", data, np.array(rows, np.int64))
    return graph.op("Reshape", graph.op(node.kind, flat, axis=-1), np.array(data.shape, np.int64))


def _top_k(graph: Graph, node: Node) -> list[Value] | None:
    if node.opset >= 11:
        return None
    count = np.array([node.attributes["k"]], np.int64) if node.opset < 10 else node.input(1)
    return graph.ops("TopK", 2, node.input(0), count, axis=int(node.attributes.get("axis", -1)))


def _norm(graph: Graph, node: Node) -> Value | None:
    """Before opset 2, the exponent is a float."""
    if node.opset >= 2:
        return None
    attributes: dict[str, Any] = dict(node.attributes)
    p = float(attributes.pop("p", 2.0))
    if p != int(p):
        raise UnsupportedOperator(f"attribute p is {p:g}, and only integers are supported")
    return graph.op(node.kind, node.input(0), p=int(p), **attributes)


def _tile(graph: Graph, node: Node) -> Value | None:
    """Before opset 6, one axis is repeated."""
    if node.opset >= 6:
        return None
    data = node.input(0)
    count, axis = (int(node.input(k).known("the tiles and the axis").reshape(())) for k in (1, 2))
    return graph.op("Tile", data, np.array([count if k == axis else 1 for k in range(data.rank)], np.int64))


def _scatter(graph: Graph, node: Node) -> Value:
    return graph.op("ScatterElements", *node.inputs, axis=int(node.attributes.get("axis", 0)))


def _selu(graph: Graph, node: Node) -> Value | None:
    """Before opset 6, the defaults have fewer digits."""
    if node.opset >= 6:
        return None
    alpha, gamma = (float(node.attributes.get(k, v)) for k, v in (("alpha", 1.6732), ("gamma", 1.0507)))
    return graph.op("Selu", node.input(0), alpha=alpha, gamma=gamma)


def _resize(graph: Graph, node: Node) -> Value | None:
    """Before opset 11, coordinates are scaled and rounded down."""
    if node.kind == "Resize" and node.opset >= 11:
        return None
    given = node.attributes.get("scales")
    if node.kind == "Upsample" and node.opset < 7:
        given = [1.0, 1.0, node.attributes["height_scale"], node.attributes["width_scale"]]
    scales = node.input(1) if given is None else graph.value(np.array(given, np.float32))
    mode = str(node.attributes.get("mode", "nearest"))
    mode = "linear" if mode == "bilinear" else mode
    data = node.input(0)
    how: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "mode": mode}
    known = scales.known("the scales").ravel()
    if mode == "nearest" and (known < 1).any():
        # ONNX Runtime rounds up the coordinates of axes that shrink.
        shrunk = np.where(known < 1, known, 1).astype(np.float32)
        data = graph.op("Resize", data, None, shrunk, nearest_mode="ceil", **how)
        scales = graph.value(np.where(known < 1, 1, known).astype(np.float32))
    return graph.op("Resize", data, None, scales, nearest_mode="floor", **how)


def _reduction(graph: Graph, node: Node) -> Value | None:
    """Before opset 18, the axes are an attribute. Without axes, all axes or none are reduced. With none, each
    element is reduced by itself."""
    since = 13 if node.kind == "ReduceSum" else 18
    data = node.input(0)
    given = node.optional(1)
    if node.opset < since:
        axes: Sequence[int] = list(node.attributes.get("axes", []))
    elif given is None:
        axes = []
    else:
        axes = given.known("the axes").tolist()
        if axes:
            return None
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return _EACH[node.kind](graph, data)
    if node.opset >= since and given is None:
        return None
    chosen = np.array(axes, np.int64) if axes else None
    return graph.op(node.kind, data, chosen, keepdims=int(node.attributes.get("keepdims", 1)))


_EACH: Mapping[str, Callable[[Graph, Value], Value]] = {
    **dict.fromkeys(("ReduceL1", "ReduceL2"), lambda graph, data: graph.op("Abs", data)),
    "ReduceLogSum": lambda graph, data: graph.op("Log", data),
    "ReduceSumSquare": lambda graph, data: graph.op("Mul", data, data),
    **dict.fromkeys(
        ("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        lambda _graph, data: data,
    ),
}

# A function that rewrites older forms of an operator; it returns None for the newest form.
FORMS: Mapping[str, Converter] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor"), _binary),
    **dict.fromkeys(("Equal", "Greater", "Less"), _binary),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), _norm),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _softmax),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _with_axes),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(_EACH, _reduction),
    **quantized.FORMS,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Concat": _concat,
    "Dropout": _dropout,
    "Pad": _pad,
    "Reshape": _reshape,
    "Scatter": _scatter,
    "Selu": _selu,
    "Split": _split,
    "Tile": _tile,
    "TopK": _top_k,
}
