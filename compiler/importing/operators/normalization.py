"""Normalizations with statistics as outputs, and normalizations with a fused addition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, UnsupportedOperator, Value


def _layer_normalization(graph: Graph, node: Node) -> Sequence[Value | None] | None:
    """Compute a layer normalization and its statistics. TVM imports float32 without statistics as outputs."""
    data, scale = node.input(0), node.input(1)
    axis = int(node.attributes.get("axis", -1)) % data.rank
    is_plain = data.dtype == "float32" and scale.shape == data.shape[axis:]
    if is_plain and not node.wants(1) and not node.wants(2):
        return None
    axes = np.arange(axis, data.rank)
    wide = graph.op("Cast", data, to=int(node.attributes.get("stash_type", 1)))
    mean = graph.op("ReduceMean", wide, axes, keepdims=1)
    centred = graph.op("Sub", wide, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), axes, keepdims=1)
    epsilon = np.array(node.attributes.get("epsilon", 1e-5), wide.dtype)
    deviation = graph.op("Reciprocal", graph.op("Sqrt", graph.op("Add", variance, epsilon)))
    normal = graph.op("CastLike", graph.op("Mul", centred, deviation), data)
    result = graph.op("Mul", normal, scale)
    shift = node.optional(2)
    return [result if shift is None else graph.op("Add", result, shift), mean, deviation]


def _rms_normalization(graph: Graph, node: Node) -> Value | None:
    """y = x / sqrt(mean(x^2) + epsilon) * scale; TVM imports one of the last axis in float32."""
    data, scale = node.input(0), node.input(1)
    axis = int(node.attributes.get("axis", -1)) % data.rank
    is_plain = data.dtype == scale.dtype == "float32"
    if is_plain and axis == data.rank - 1 > 0 and scale.shape == data.shape[-1:]:
        return None
    wide = graph.op("Cast", data, to=int(node.attributes.get("stash_type", 1)))
    squares = graph.op("ReduceMean", graph.op("Mul", wide, wide), np.arange(axis, data.rank), keepdims=1)
    epsilon = np.array(node.attributes.get("epsilon", 1e-5), wide.dtype)
    size = graph.op("Sqrt", graph.op("Add", squares, epsilon))
    normal = graph.op("CastLike", graph.op("Div", wide, size), data)
    return graph.op("Mul", cast(graph, normal, scale.dtype), scale)


def _mean_variance_normalization(graph: Graph, node: Node) -> Value:
    """(x - mean) / (sqrt(variance) + 1e-9), with the statistics of the given axes."""
    data = node.input(0)
    axes = np.array(node.attributes.get("axes", [0, 2, 3]), np.int64)
    centred = graph.op("Sub", data, graph.op("ReduceMean", data, axes, keepdims=1))
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), axes, keepdims=1)
    deviation = graph.op("Add", graph.op("Sqrt", variance), np.array(1e-9, data.dtype))
    return graph.op("Div", centred, deviation)


def _batch_normalization(graph: Graph, node: Node) -> Value | None:
    """y = x s + (shift - mean s), where s = scale / sqrt(variance + epsilon); TVM imports one in float32."""
    if node.attributes.get("training_mode", 0):
        raise UnsupportedOperator("training isn't supported")
    data, *parameters = (node.input(position) for position in range(5))
    if {data.dtype, *(value.dtype for value in parameters)} == {"float32"}:
        return None
    dtype = "float64" if data.dtype == "float64" else "float32"
    scale, shift, mean, variance = (
        graph.op("Reshape", cast(graph, value, dtype), np.array([-1, *[1] * (data.rank - 2)]))
        for value in parameters
    )
    epsilon = np.array(node.attributes.get("epsilon", 1e-5), dtype)
    factor = graph.op("Div", scale, graph.op("Sqrt", graph.op("Add", variance, epsilon)))
    rest = graph.op("Sub", shift, graph.op("Mul", mean, factor))
    scaled = graph.op("Mul", data, cast(graph, factor, data.dtype))
    return graph.op("Add", scaled, cast(graph, rest, data.dtype))


def _skip_layer_normalization(graph: Graph, node: Node) -> Sequence[Value | None]:
    """y = LayerNormalization(x + skip + bias)"""
    total = graph.op("Add", node.input(0), node.input(1))
    bias = node.optional(4)
    total = total if bias is None else graph.op("Add", total, bias)
    epsilon = float(node.attributes.get("epsilon", 1e-12))
    wanted = 3 if node.wants(1) or node.wants(2) else 1
    results: list[Value | None] = list(
        graph.ops(
            "LayerNormalization", wanted, total, node.input(2), node.optional(3), axis=-1, epsilon=epsilon
        )
    )
    return [*results, *[None] * (3 - wanted), total]


def _skip_simplified_layer_normalization(graph: Graph, node: Node) -> Sequence[Value | None]:
    """y = RMSNormalization(x + skip + bias)"""
    total = graph.op("Add", node.input(0), node.input(1))
    bias = node.optional(3)
    total = total if bias is None else graph.op("Add", total, bias)
    result = _root_mean_square(graph, node, total, node.input(2), 1e-12)
    return [result, None, None, total]


def _simplified_layer_normalization(graph: Graph, node: Node) -> Value:
    return _root_mean_square(graph, node, node.input(0), node.input(1), 1e-5)


def _root_mean_square(graph: Graph, node: Node, data: Value, scale: Value, default: float) -> Value:
    epsilon = float(node.attributes.get("epsilon", default))
    axis = int(node.attributes.get("axis", -1))
    return graph.op("RMSNormalization", data, scale, axis=axis, epsilon=epsilon, opset=23)


def _lrn(graph: Graph, node: Node) -> Value:
    """x / (bias + alpha / size * (sum of the squares of `size` channels))^beta; at the edges, TVM divides by
    fewer channels."""
    data, size = node.input(0), int(node.attributes["size"])
    alpha, beta, bias = (
        float(node.attributes.get(name, default))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    wide = data if data.dtype == "float64" else cast(graph, data, "float32")
    before, after = (size - 1) // 2, size // 2
    pads = [0, before, *[0] * (data.rank - 2), 0, after, *[0] * (data.rank - 2)]
    squares = graph.op("Pad", graph.op("Mul", wide, wide), np.array(pads))
    channels = data.shape[1]
    parts = [
        graph.op("Slice", squares, np.array([k]), np.array([k + channels]), np.array([1]))
        for k in range(size)
    ]
    scaled = graph.op("Mul", graph.op("Sum", *parts), np.array(alpha / size, wide.dtype))
    total = graph.op("Add", scaled, np.array(bias, wide.dtype))
    power = graph.op("Pow", total, np.array(beta, wide.dtype))
    return cast(graph, graph.op("Div", wide, power), data.dtype)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "BatchNormalization"): _batch_normalization,
    ("", "LRN"): _lrn,
    ("", "LayerNormalization"): _layer_normalization,
    ("", "MeanVarianceNormalization"): _mean_variance_normalization,
    ("", "RMSNormalization"): _rms_normalization,
    ("", "SimplifiedLayerNormalization"): _simplified_layer_normalization,
    ("com.microsoft", "SimplifiedLayerNormalization"): _simplified_layer_normalization,
    ("com.microsoft", "SkipLayerNormalization"): _skip_layer_normalization,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_simplified_layer_normalization,
}
