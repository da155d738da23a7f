"""Convert reductions of integers, because TVM's means of int32 are int64, and its sums wrap around."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, Value, numpy_dtype

# Reductions for which int64 gives the exact result unless it overflows.
_EXACT = ("ReduceL1", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare")


def _reduce(graph: Graph, node: Node) -> Value | None:
    """Reduce signed integers as ONNX Runtime does: in float64, with results cut to the range of the type.

    Results of int64 that don't overflow are exact, which float64 is not.
    """
    data = node.input(0)
    if numpy_dtype(data.dtype).kind not in "iu":
        return _log_sum_exp(graph, node) if node.kind == "ReduceLogSumExp" else None
    if data.dtype in ("uint32", "uint64"):
        return _whole(graph, node, data)
    axes = node.optional(1)
    keepdims = int(node.attributes.get("keepdims", 1))
    number = graph.op(node.kind, cast(graph, data, "float64"), axes, keepdims=keepdims)
    limits = np.iinfo(data.dtype)
    # float64 can't represent the largest int64.
    least, most = float(limits.min), float(limits.max) if data.dtype != "int64" else np.nextafter(2.0**63, 0)
    low, high = np.float64(least), np.float64(most)
    cut = cast(graph, graph.op("Max", graph.op("Min", number, high), low), data.dtype)
    if data.dtype != "int64":
        return cut
    above = graph.op("Greater", number, high)
    cut = graph.op("Where", above, np.int64(limits.max), cut)
    if node.kind not in _EXACT:
        return cut
    overflows = graph.op("Or", above, graph.op("Less", number, low))
    return graph.op("Where", overflows, cut, _whole(graph, node, data))


def _log_sum_exp(graph: Graph, node: Node) -> Value:
    """log(sum(exp(x - m))) + m, where m is the maximum, or 0 where that is infinite: inf - inf is NaN."""
    data, axes = node.input(0), node.optional(1)
    wide = data if data.dtype == "float64" else cast(graph, data, "float32")
    largest = graph.op("ReduceMax", wide, axes, keepdims=1)
    zero = np.array(0, wide.dtype)
    largest = graph.op("Where", graph.op("IsInf", largest), zero, largest)
    total = graph.op("ReduceSum", graph.op("Exp", graph.op("Sub", wide, largest)), axes, keepdims=1)
    result = graph.op("Add", graph.op("Log", total), largest)
    if not int(node.attributes.get("keepdims", 1)):
        chosen = range(data.rank) if axes is None else axes.known("the axes").tolist()
        result = graph.op("Squeeze", result, np.array([*chosen], np.int64)) if data.rank else result
    return cast(graph, result, data.dtype)


def _whole(graph: Graph, node: Node, data: Value) -> Value:
    """Reduce integers as integers. Sums that are too large lose their high bits."""
    summed = data
    if node.kind == "ReduceL1":
        summed = graph.op("Abs", data)
    elif node.kind == "ReduceSumSquare":
        summed = graph.op("Mul", data, data)
    elif node.kind in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
        wide = cast(graph, data, "float64")
        return cast(graph, graph.op(node.kind, wide, *node.inputs[1:], **node.attributes), data.dtype)
    axes = node.optional(1)
    chosen = None if axes is None else [int(axis) for axis in axes.known("the axes")]
    keepdims = bool(node.attributes.get("keepdims", 1))
    reduce = relax.op.prod if node.kind == "ReduceProd" else relax.op.sum
    total = graph.emit(reduce(summed.expr, chosen, keepdims))
    if node.kind != "ReduceMean":
        return total
    return graph.op("Div", total, np.array(data.size // max(total.size, 1), data.dtype))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", kind): _reduce for kind in (*_EXACT, "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
}
