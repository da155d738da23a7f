"""Convert operators of halves that ONNX Runtime computes in float32, with one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, Value

HALVES = ("float16", "bfloat16")
# Operators that compute in several steps, or sum elements. Other operators round only once anyway.
KINDS = (
    *("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Selu", "Shrink"),
    *("Sigmoid", "Softplus", "Softsign", "Swish", "ThresholdedRelu"),
    *("Atanh", "IsInf", "IsNaN", "Mean", "Mod", "Pow", "Sum"),
    *("CumProd", "CumSum", "DeformConv", "Det", "Einsum"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum"),
    "ReduceSumSquare",
    *("AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool"),
    *("GroupNormalization", "InstanceNormalization", "LpNormalization", "LRN", "MeanVarianceNormalization"),
    *("LogSoftmax", "RoiAlign", "Softmax"),
)


def in_float32(converter: Converter | None) -> Converter:
    """Return a converter that computes a node of halves in float32, and any other node as before."""

    def convert(graph: Graph, node: Node) -> Value | Sequence[Value | None] | None:
        if not any(value is not None and value.dtype in HALVES for value in node.inputs):
            return None if converter is None else converter(graph, node)
        inputs = [
            cast(graph, value, "float32") if value is not None and value.dtype in HALVES else value
            for value in node.inputs
        ]
        attributes: dict[str, Any] = dict(node.attributes)
        outputs = graph.ops(node.kind, len(node.outputs), *inputs, opset=node.opset, **attributes)
        half = node.input(0).dtype
        if half not in HALVES:
            return outputs
        return [cast(graph, value, half) if value.dtype == "float32" else value for value in outputs]

    return convert
