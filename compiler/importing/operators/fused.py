"""Convert fused operators of other runtimes' optimizers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.values import Node, UnsupportedOperator, Value


def _fused_matmul(graph: Graph, node: Node) -> Value:
    """y = alpha * op(a) op(b), where op may transpose the last two axes, or move the first axis there."""
    operands = []
    for position, side in enumerate("AB"):
        value = node.input(position)
        if node.attributes.get(f"transBatch{side}", 0):
            value = graph.op("Transpose", value, perm=[*range(1, value.rank - 1), 0, value.rank - 1])
        if node.attributes.get(f"trans{side}", 0) and value.rank > 1:
            value = graph.op(
                "Transpose", value, perm=[*range(value.rank - 2), value.rank - 1, value.rank - 2]
            )
        operands.append(value)
    product = graph.op("MatMul", *operands)
    alpha = float(node.attributes.get("alpha", 1.0))
    return product if alpha == 1.0 else graph.op("Mul", product, np.array(alpha, product.dtype))


def _bias_gelu(graph: Graph, node: Node) -> Value:
    return graph.op("Gelu", graph.op("Add", node.input(0), node.input(1)))


def _fast_gelu(graph: Graph, node: Node) -> Value:
    data, bias = node.input(0), node.optional(1)
    return graph.op("Gelu", data if bias is None else graph.op("Add", data, bias), approximate="tanh")


def _gelu(graph: Graph, node: Node) -> Value:
    return graph.op("Gelu", node.input(0))


def _quick_gelu(graph: Graph, node: Node) -> Value:
    """y = x * sigmoid(alpha * x)"""
    data = node.input(0)
    alpha = np.array(node.attributes.get("alpha", 1.702), data.dtype)
    return graph.op("Mul", data, graph.op("Sigmoid", graph.op("Mul", data, alpha)))


def _fused_gemm(graph: Graph, node: Node) -> Value:
    names = ("alpha", "beta", "transA", "transB")
    given = {name: node.attributes[name] for name in names if name in node.attributes}
    return _activated(graph, node, graph.op("Gemm", *node.inputs, **given))


def _fused_conv(graph: Graph, node: Node) -> Value:
    """y = activation(Conv(x, w, b) + z)"""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = {name: node.attributes[name] for name in names if name in node.attributes}
    result = graph.op("Conv", *node.inputs[:3], **given)
    added = node.optional(3)
    return _activated(graph, node, result if added is None else graph.op("Add", result, added))


def _activated(graph: Graph, node: Node, value: Value) -> Value:
    activation = str(node.attributes.get("activation", ""))
    parameters = [float(number) for number in node.attributes.get("activation_params", [])]
    match activation, parameters:
        case "", _:
            return value
        case (("Relu" | "Tanh" | "Sigmoid"), _):
            return graph.op(activation, value)
        case "LeakyRelu", [alpha, *_]:
            return graph.op("LeakyRelu", value, alpha=alpha)
        case "Clip", [low, high]:
            return graph.op("Clip", value, np.array(low, value.dtype), np.array(high, value.dtype))
        case "HardSigmoid", [alpha, beta]:
            return graph.op("HardSigmoid", value, alpha=alpha, beta=beta)
    raise UnsupportedOperator(f"activation {activation} isn't known")


_MICROSOFT = "com.microsoft"


def _gemm(graph: Graph, node: Node) -> Value | None:
    """Leave the product to TVM, except for integers with fractional factors, which TVM would round down. A
    term with beta = 0 isn't read, because it may be NaN."""
    data = node.input(0)
    if node.optional(2) is not None and not node.attributes.get("beta", 1.0):
        return graph.op("Gemm", *node.inputs[:2], **{**node.attributes, "beta": 1.0})
    for name in ("alpha", "beta"):
        factor = float(node.attributes.get(name, 1.0))
        if "int" in data.dtype and not factor.is_integer():
            raise UnsupportedOperator(
                f"{name} {factor:g} isn't whole, but the inputs are: cast them to floats"
            )
    return None


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Gemm"): _gemm,
    (_MICROSOFT, "BiasGelu"): _bias_gelu,
    (_MICROSOFT, "FastGelu"): _fast_gelu,
    (_MICROSOFT, "FusedConv"): _fused_conv,
    (_MICROSOFT, "FusedGemm"): _fused_gemm,
    (_MICROSOFT, "FusedMatMul"): _fused_matmul,
    (_MICROSOFT, "Gelu"): _gelu,
    (_MICROSOFT, "QuickGelu"): _quick_gelu,
}
