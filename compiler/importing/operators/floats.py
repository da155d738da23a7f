"""Convert to and from types of at most 8 bits, which TVM lacks or rounds differently from ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tvm import relax, te, tirx

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.spec import NARROW, STORAGE
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
    saturate = bool(node.attributes.get("saturate", 1))
    if data.dtype in NARROW:
        number = _from_codes(graph, data)
        return graph.op("Cast", number, to=to, saturate=int(saturate))
    if dtype == "float8_e8m0fnu":
        number = graph.op("Cast", data, to=onnx.TensorProto.FLOAT)
        return _to_power(graph, number, str(node.attributes.get("round_mode", "up")), saturate)
    if dtype in NARROW:
        if "int" in dtype:
            return _to_narrow_integer(graph, data, dtype)
        number = graph.op("Cast", data, to=onnx.TensorProto.FLOAT)
        return _to_small_float(graph, number, dtype, saturate or NARROW[dtype] < 8)
    return graph.op("Cast", data, to=to) if node.kind == "CastLike" else None


def _from_codes(graph: Graph, data: Value) -> Value:
    """Return the values of small types: integers as int8 or uint8, floats as float32, which are looked up."""
    codes = data.stored()
    if data.dtype.startswith("uint"):
        return codes
    if "int" in data.dtype:
        sign = np.int8(1 << (NARROW[data.dtype] - 1))
        number = relax.op.bitwise_xor(_converted(codes, "int8"), relax.const(sign, "int8"))
        return graph.emit(relax.op.subtract(graph.emit(number).expr, relax.const(sign, "int8")))
    places = graph.emit(_converted(codes, "int32"))
    table = _values(data.dtype)
    return graph.emit(relax.op.take(relax.const(table, "float32"), places.expr, axis=0))


def _converted(value: Value, dtype: str) -> relax.Expr:
    return relax.op.astype(value.expr, dtype)


def _to_narrow_integer(graph: Graph, data: Value, dtype: str) -> Value:
    """Return the lowest bits of integers. Floats are rounded to the nearest integer, halves away from zero,
    as in ONNX Runtime."""
    if "float" in data.dtype:
        size = graph.op("Abs", graph.op("Cast", data, to=onnx.TensorProto.FLOAT))
        whole = graph.op("Floor", size)
        is_more = graph.op("GreaterOrEqual", graph.op("Sub", size, whole), np.float32(0.5))
        whole = graph.op("Where", is_more, graph.op("Add", whole, np.float32(1)), whole)
        number = graph.op("Cast", whole, to=onnx.TensorProto.INT32)
        is_negative = graph.op("Less", data, np.array(0, numpy_dtype(data.dtype)))
        data = graph.op("Where", is_negative, graph.op("Neg", number), number)
    mask = relax.const(np.array((1 << NARROW[dtype]) - 1, STORAGE), STORAGE)
    codes = graph.emit(_converted(data, STORAGE)) if data.dtype != STORAGE else data
    return graph.emit(relax.op.bitwise_and(codes.expr, mask)).narrowed(dtype)


def _to_small_float(graph: Graph, data: Value, dtype: str, saturate: bool) -> Value:
    """Count the bounds between codes that are below a number. The count is its code without the sign.

    A number in the middle between two codes goes to the even one.
    """
    values = _values(dtype)
    sign = len(values) // 2
    positive = values[:sign]
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
    # A type without NaN has minus zero instead, as in ml_dtypes.
    unordered = int([*np.flatnonzero(np.isnan(values)), sign][0])
    if not saturate:
        # Above the middle between the largest number and the next one, the result is infinite or NaN.
        beyond = np.float32(most + (most - finite[-2]) / 2)
        outside = graph.op("Greater" if last % 2 == 0 else "GreaterOrEqual", size, beyond)
        code = graph.op(
            "Where", outside, np.int32(infinite[0] if len(infinite) else unordered & (sign - 1)), code
        )
    has_sign = graph.op("Less", reinterpreted(graph, data, "int32"), np.int32(0))
    if dtype.endswith("fnuz"):
        # The code of minus zero means NaN.
        has_sign = graph.op("And", has_sign, graph.op("Greater", code, np.int32(0)))
    code = graph.op("Add", code, graph.op("Where", has_sign, np.int32(sign), np.int32(0)))
    if not saturate and dtype.endswith("fnuz"):
        code = graph.op("Where", outside, np.int32(unordered), code)
    code = graph.op("Where", graph.op("IsNaN", data), np.int32(unordered), code)
    return graph.emit(_converted(code, STORAGE)).narrowed(dtype)


def _to_power(graph: Graph, data: Value, round_mode: str, saturate: bool) -> Value:
    """Return the powers of two that floats are rounded to: the exponents of float32, from 2**-127 on.

    Signs are ignored, because ONNX doesn't define the result for negative numbers.
    """
    if round_mode not in ("up", "down", "nearest"):
        raise UnsupportedOperator(f"round_mode is '{round_mode}': it must be up, down or nearest")
    bits = graph.op("BitwiseAnd", reinterpreted(graph, data, "int32"), np.int32(0x7FFFFFFF))
    # The numbers of floats from one power to the next. From 2**-127 to 2**-126, there are half as many.
    step, least, infinite = 1 << 23, 1 << 22, 0x7F800000
    rest = graph.op("BitwiseAnd", bits, np.int32(step - 1))
    code = graph.emit(relax.op.right_shift(bits.expr, relax.const(23, "int32")))
    if round_mode != "down":
        is_least = graph.op("Equal", code, np.int32(0))
        after = {"up": (0, least), "nearest": (least - 1, least + least // 2 - 1)}[round_mode]
        bound = graph.op("Where", is_least, np.int32(after[1]), np.int32(after[0]))
        code = graph.op(
            "Add", code, graph.op("Where", graph.op("Greater", rest, bound), np.int32(1), np.int32(0))
        )
    if saturate:
        code = graph.op("Min", code, np.int32(254))
    else:
        code = graph.op("Where", graph.op("Less", bits, np.int32(least)), np.int32(255), code)
        code = graph.op("Min", code, np.int32(255))
    code = graph.op("Where", graph.op("Greater", bits, np.int32(infinite)), np.int32(255), code)
    return graph.emit(_converted(code, STORAGE)).narrowed("float8_e8m0fnu")


def _values(dtype: str) -> NDArray[np.float32]:
    """Return the values of all codes of a small type of floats."""
    return np.arange(1 << NARROW[dtype], dtype=np.uint8).view(numpy_dtype(dtype)).astype(np.float32)


def _bit_cast(graph: Graph, node: Node) -> Value:
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])))
    data = node.input(0)
    if data.dtype == dtype:
        return data
    before, after = (NARROW.get(one, 8 * numpy_dtype(one).itemsize) for one in (data.dtype, dtype))
    if before != after:
        raise UnsupportedOperator(f"{data.dtype} has {before} bits and {dtype} has {after}")
    data = data.stored() if data.dtype in NARROW else data
    if data.dtype == "bool":
        data = graph.op("Cast", data, to=onnx.TensorProto.UINT8)
    if dtype == "bool":
        # The bytes of booleans are 0 and 1.
        bits = data if data.dtype == STORAGE else reinterpreted(graph, data, STORAGE)
        return graph.op("Cast", bits, to=onnx.TensorProto.BOOL)
    if dtype in NARROW:
        codes = data if data.dtype == STORAGE else reinterpreted(graph, data, STORAGE)
        return codes.narrowed(dtype)
    return data if data.dtype == dtype else reinterpreted(graph, data, dtype)


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
