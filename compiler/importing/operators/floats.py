"""Conversions to and from floats of 8 bits, which TVM rounds otherwise than ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tvm import relax, te, tirx

from compiler.importing.onnx_file import NARROW
from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.values import Node, UnsupportedOperator, Value, numpy_dtype


def _cast(graph: Graph, node: Node) -> Value | None:
    data = node.input(0)
    if node.kind == "CastLike":
        to = int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(node.input(1).dtype)))
    else:
        to = int(node.attributes["to"])
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(to))
    if dtype == data.dtype:
        return data
    if dtype in NARROW:
        raise UnsupportedOperator(f"only constants can be converted to {dtype}")
    if data.dtype.startswith("float8"):
        return graph.op("Cast", _from_float8(graph, data), to=to)
    if dtype.startswith("float8"):
        number = graph.op("Cast", data, to=onnx.TensorProto.FLOAT)
        return _to_float8(graph, number, dtype, bool(node.attributes.get("saturate", 1)))
    return graph.op("Cast", data, to=to) if node.kind == "CastLike" else None


def _from_float8(graph: Graph, data: Value) -> Value:
    """Look the values of all 256 codes up."""
    places = graph.emit(relax.op.astype(reinterpreted(graph, data, "uint8").expr, "int32"))
    table = _values(data.dtype)
    return graph.emit(relax.op.take(relax.const(table, "float32"), places.expr, axis=0))


def _to_float8(graph: Graph, data: Value, dtype: str, saturate: bool) -> Value:
    """Count the bounds between codes below a number: that is its code, but for the sign.

    A number in the middle between two codes goes to the even one.
    """
    values = _values(dtype)
    if dtype == "float8_e8m0fnu":
        raise UnsupportedOperator(f"only constants can be converted to {dtype}")
    positive = values[:128]
    finite = positive[np.isfinite(positive)]
    middles = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    lower_is_odd = np.arange(len(middles)) % 2 == 1
    bounds = np.where(lower_is_odd, np.nextafter(middles.astype(np.float32), np.float32(0)), middles)
    size = graph.op("Abs", data)
    above = graph.op("Greater", graph.op("Unsqueeze", size, np.array([-1])), bounds.astype(np.float32))
    counts = graph.op("Cast", above, to=onnx.TensorProto.INT32)
    code = graph.op("ReduceSum", counts, np.array([-1]), keepdims=0)
    most, last = finite[-1].astype(np.float64), len(finite) - 1
    infinite = np.flatnonzero(np.isinf(positive))
    unordered = int(np.flatnonzero(np.isnan(values))[0])
    if not saturate:
        # Beyond the middle to what the next number would be, it is infinite, or no number.
        beyond = np.float32(most + (most - finite[-2]) / 2)
        outside = graph.op("Greater" if last % 2 == 0 else "GreaterOrEqual", size, beyond)
        code = graph.op("Where", outside, np.int32(infinite[0] if len(infinite) else unordered & 127), code)
    has_sign = graph.op("Less", data, np.float32(0))
    if dtype.endswith("fnuz"):
        # The code of minus zero is no number.
        has_sign = graph.op("And", has_sign, graph.op("Greater", code, np.int32(0)))
    code = graph.op("Add", code, graph.op("Where", has_sign, np.int32(128), np.int32(0)))
    if not saturate and dtype.endswith("fnuz"):
        code = graph.op("Where", outside, np.int32(unordered), code)
    code = graph.op("Where", graph.op("IsNaN", data), np.int32(unordered), code)
    return reinterpreted(graph, graph.emit(relax.op.astype(code.expr, "uint8")), dtype)


def _values(dtype: str) -> NDArray[np.float32]:
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype)).astype(np.float32)


def _bit_cast(graph: Graph, node: Node) -> Value:
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])))
    data = node.input(0)
    if data.dtype == "bool" and dtype in ("uint8", "int8"):
        return graph.op("Cast", data, to=int(node.attributes["to"]))
    if "bool" in (dtype, data.dtype):
        raise UnsupportedOperator("the bits of booleans aren't supported")
    if numpy_dtype(dtype).itemsize != numpy_dtype(data.dtype).itemsize:
        raise UnsupportedOperator(f"{data.dtype} and {dtype} have different numbers of bits")
    return reinterpreted(graph, data, dtype)


def reinterpreted(graph: Graph, data: Value, dtype: str) -> Value:
    """Return the elements whose bits are the same."""

    def compute(tensor: te.Tensor) -> te.Tensor:
        return te.compute(tensor.shape, lambda *at: tirx.reinterpret(dtype, tensor[at]), name="bit_cast")

    expr: Any = graph.builder.emit_te(compute, data.expr)
    return graph.emit(expr)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "BitCast"): _bit_cast,
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast,
}
