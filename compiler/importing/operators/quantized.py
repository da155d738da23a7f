"""Convert quantized operators. Integers are multiplied as integers; the rest is computed in float32.

A quantized value q stands for (q - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tvm import relax

from compiler.importing.onnx_file import INT8_LEVEL
from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.spec import NARROW
from compiler.importing.values import BlockQuantized, Node, UnsupportedOperator, Value, numpy_dtype
from compiler.precision.packed_weights import PACKED_BITS, PackedWeight, packed_product

# The types of floats that are multiplied by packed weights.
_PACKED_FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int64", "int4", "uint4", "int2", "uint2")


def bounds(dtype: str) -> tuple[int, int]:
    """Return the least and the largest value of a type of integers."""
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def quantize(
    graph: Graph, data: Value, scale: Value, zero: Value | None, dtype: str, saturate: bool = True
) -> Value:
    """Return saturate(round(data / scale) + zero point); `scale` and `zero` broadcast to the data.

    Without `saturate`, floats of 8 bits are infinite or NaN beyond their range.
    """
    wide = "float64" if "float64" in (data.dtype, scale.dtype) else "float32"
    quotient = graph.op("Div", cast(graph, data, wide), cast(graph, scale, wide))
    return _saturated(graph, quotient, zero, dtype, saturate)


def requantize(
    graph: Graph, total: Value, scales: tuple[Value, Value], scale: Value, zero: Value, dtype: str
) -> Value:
    """Quantize a sum of products of integers with these scales, by one multiplication."""
    factor = graph.op("Div", graph.op("Mul", *scales), scale)
    factor = cast(graph, factor, "float32")
    return _saturated(graph, graph.op("Mul", cast(graph, total, "float32"), factor), zero, dtype)


def _saturated(graph: Graph, quotient: Value, zero: Value | None, dtype: str, saturate: bool = True) -> Value:
    """Return saturate(round(quotient) + zero point)."""
    if dtype not in INTEGERS:
        if zero is not None and not _is_zero(zero):
            quotient = graph.op("Add", quotient, cast(graph, zero, quotient.dtype))
        return cast(graph, quotient, dtype, saturate)
    rounded = graph.op("Round", quotient)
    if zero is not None:
        rounded = graph.op("Add", rounded, cast(graph, zero, quotient.dtype))
    low, high = (np.array(bound, quotient.dtype) for bound in bounds(dtype))
    inside = graph.op("Clip", rounded, low, high)
    if dtype in NARROW:
        return cast(graph, inside, dtype)
    return graph.emit(relax.op.astype(inside.expr, dtype))


def dequantize(graph: Graph, data: Value, scale: Value, zero: Value | None, dtype: str = "float32") -> Value:
    """Return (data - zero point) * scale."""
    wide = dtype if dtype == "float64" else "float32"
    if zero is not None and not _is_zero(zero):
        whole = data.dtype if data.dtype in ("int32", "int64") else "int32"
        exact = whole if data.dtype in INTEGERS else wide
        data = graph.op("Sub", cast(graph, data, exact), cast(graph, zero, exact))
    return cast(graph, graph.op("Mul", cast(graph, data, wide), cast(graph, scale, wide)), dtype)


def cast(graph: Graph, value: Value, dtype: str, saturate: bool = True) -> Value:
    if value.dtype == dtype:
        return value
    to = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
    return graph.op("Cast", value, to=to, saturate=int(saturate))


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not value.constant.any()


def along_axis(graph: Graph, value: Value, data: Value, axis: int, block: int = 0) -> Value:
    """Shape scales or zero points, one for each index of an axis or for each block of it, so that they
    broadcast to the data."""
    if value.size == 1:
        return graph.op("Reshape", value, np.array([], np.int64))
    axis %= data.rank
    if block:
        return graph.op("Gather", value, np.arange(data.shape[axis]) // block, axis=axis)
    shape = [-1 if position == axis else 1 for position in range(data.rank)]
    return graph.op("Reshape", value, np.array(shape)) if value.rank == 1 else value


def _is_plain(node: Node, integers: Value | None) -> bool:
    """Return whether a quantizer returns bytes and has constant parameters.

    TVM imports these as separate operators, and `compiler.precision` turns them into dot products of bytes.
    """
    scale, zero = node.input(1), node.optional(2)
    if scale.constant is None or scale.dtype != "float32" or (zero is not None and zero.constant is None):
        return False
    dtype = "uint8" if integers is None else integers.dtype
    return dtype in ("int8", "uint8", "int32") and not node.attributes.get("block_size", 0)


def _quantize_linear(graph: Graph, node: Node) -> Value | None:
    if node.domain:
        return graph.op("QuantizeLinear", *node.inputs, **node.attributes)
    if node.input(0).dtype == "float32" and _is_plain(node, node.optional(2)):
        return None
    data, scale, zero = node.input(0), node.input(1), node.optional(2)
    dtype = "uint8" if zero is None else zero.dtype
    if node.attributes.get("output_dtype"):
        number = int(node.attributes["output_dtype"])
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(number))
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    scale = along_axis(graph, scale, data, axis, block) if data.rank else scale
    zero = along_axis(graph, zero, data, axis, block) if zero is not None and data.rank else zero
    saturate = bool(node.attributes.get("saturate", 1))
    return quantize(graph, data, scale, zero, dtype, saturate)


def _dequantize_linear(graph: Graph, node: Node) -> Value | None:
    if node.domain:
        return graph.op("DequantizeLinear", *node.inputs, **node.attributes)
    if node.input(0).dtype in ("int8", "uint8", "int32") and _is_plain(node, node.input(0)):
        return None
    data, scale, zero = node.input(0), node.input(1), node.optional(2)
    dtype = scale.dtype
    if node.attributes.get("output_dtype"):
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(int(node.attributes["output_dtype"])))
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    if dtype == scale.dtype and (quantized := _in_blocks(data, scale, zero, axis, block)) is not None:
        return quantized
    scale = along_axis(graph, scale, data, axis, block) if data.rank else scale
    zero = along_axis(graph, zero, data, axis, block) if zero is not None and data.rank else zero
    return dequantize(graph, data, scale, zero, dtype)


def _in_blocks(data: Value, scale: Value, zero: Value | None, axis: int, block: int) -> BlockQuantized | None:
    """Return a constant matrix of 4 or 8 bits that is quantized in whole blocks of an axis; None for
    others.
    """
    codes, scales = data.constant, scale.constant
    if not block or codes is None or scales is None or codes.ndim != 2 or scale.dtype not in _PACKED_FLOATS:
        return None
    if data.dtype not in ("int4", "uint4", "int8", "uint8") or codes.shape[axis] % block:
        return None
    bits, least = int(data.dtype.strip("uint")), bounds(data.dtype)[0]
    zeros = np.zeros(scales.shape, np.int16)
    if zero is not None:
        if zero.constant is None:
            return None
        zeros = zero.constant.astype(np.int16)
    # Signed numbers become unsigned ones: so do their zero points.
    numbers = (codes.astype(np.int16) - least).astype(np.uint8)
    is_turned = axis % 2 == 1
    if not is_turned:
        numbers, scales, zeros = numbers.T, scales.T, zeros.T
    in_blocks = np.ascontiguousarray(numbers).reshape(len(numbers), -1, block)
    return BlockQuantized(in_blocks, scales, zeros - least, bits, is_turned)


def _dynamic_quantize_linear(graph: Graph, node: Node) -> Sequence[Value]:
    """Quantize to uint8 by the range of the data. If all data is zero, the scale is one, as in ONNX
    Runtime."""
    data = node.input(0)
    zero, most = np.float32(0), np.float32(255)
    low = graph.op("Min", zero, graph.op("ReduceMin", data, keepdims=0))
    high = graph.op("Max", zero, graph.op("ReduceMax", data, keepdims=0))
    scale = graph.op("Div", graph.op("Sub", high, low), most)
    divisor = graph.op("Where", graph.op("Equal", scale, zero), np.float32(1), scale)
    point = graph.op(
        "Round", graph.op("Clip", graph.op("Sub", zero, graph.op("Div", low, divisor)), zero, most)
    )
    point = cast(graph, point, "uint8")
    return [quantize(graph, data, divisor, point, "uint8"), divisor, point]


def matmul_of_integers(graph: Graph, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """Return the product of the integers a and b, minus their zero points, in int32.

        sum_k (a[i,k] - za) (b[k,j] - zb)
    ->
        sum_k a[i,k] b[k,j] - za sum_k b[k,j]                  # narrow operands, if zb is zero
    """
    if a_zero is not None and a_zero.rank == 1 and a_zero.size > 1:
        a_zero = graph.op("Unsqueeze", a_zero, np.array([1]))
    if b_zero is not None and not _is_zero(b_zero):
        b, b_zero = graph.op("Sub", cast(graph, b, "int32"), cast(graph, b_zero, "int32")), None
    if b.constant is not None and b.dtype in ("int8", "uint8") and a.dtype in ("int8", "uint8"):
        product = graph.emit(relax.op.matmul(a.expr, b.expr, out_dtype="int32"))
        if a_zero is None or _is_zero(a_zero):
            return product
        # A vector has no axis that the product keeps.
        are_matrices = a.rank > 1 and b.rank > 1
        axis = np.array([-2 if b.rank > 1 else -1])
        sums = graph.op("ReduceSum", cast(graph, b, "int32"), axis, keepdims=int(are_matrices))
        return graph.op("Sub", product, graph.op("Mul", cast(graph, a_zero, "int32"), sums))
    a, b = (cast(graph, value, "int32") for value in (a, b))
    if a_zero is not None and not _is_zero(a_zero):
        a = graph.op("Sub", a, cast(graph, a_zero, "int32"))
    return graph.op("MatMul", a, b)


def _matmul_integer(graph: Graph, node: Node) -> Value:
    return matmul_of_integers(graph, node.input(0), node.input(1), node.optional(2), node.optional(3))


def convolution_of_integers(
    graph: Graph, node: Node, data: Value, weight: Value, data_zero: Value | None, weight_zero: Value | None
) -> Value:
    """Return the convolution of the integers, minus their zero points, in int32. Padding represents zero."""
    data, weight = (cast(graph, value, "int32") for value in (data, weight))
    if data_zero is not None and not _is_zero(data_zero):
        data = graph.op("Sub", data, cast(graph, data_zero, "int32"))
    if weight_zero is not None and not _is_zero(weight_zero):
        shape = [-1, *[1] * (weight.rank - 1)] if weight_zero.size > 1 else []
        zeros = graph.op("Reshape", cast(graph, weight_zero, "int32"), np.array(shape, np.int64))
        weight = graph.op("Sub", weight, zeros)
    return graph.op("Conv", data, weight, **_window(node))


def _window(node: Node) -> dict[str, Any]:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return {name: node.attributes[name] for name in names if name in node.attributes}


def _conv_integer(graph: Graph, node: Node) -> Value:
    zeros = node.optional(2), node.optional(3)
    return convolution_of_integers(graph, node, node.input(0), node.input(1), *zeros)


def _qlinear_conv(graph: Graph, node: Node) -> Value:
    data, data_scale, data_zero, weight, weight_scale, weight_zero, scale, zero = (
        node.input(position) for position in range(8)
    )
    total = convolution_of_integers(graph, node, data, weight, data_zero, weight_zero)
    channels = np.array([1, -1, *[1] * (total.rank - 2)])
    bias = node.optional(8)
    if bias is not None:
        total = graph.op("Add", total, graph.op("Reshape", bias, channels))
    if weight_scale.size > 1:
        weight_scale = graph.op("Reshape", weight_scale, channels)
    scales = _scalar(graph, data_scale), _scalar(graph, weight_scale)
    return requantize(graph, total, scales, _scalar(graph, scale), _scalar(graph, zero), zero.dtype)


def _scalar(graph: Graph, value: Value) -> Value:
    return graph.op("Reshape", value, np.array([], np.int64)) if value.size == 1 else value


def _qlinear_matmul(graph: Graph, node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (node.input(position) for position in range(8))
    a_zero, b_zero, scale, zero = (_scalar(graph, value) for value in (a_zero, b_zero, scale, zero))
    a_scale, b_scale = _scalar(graph, a_scale), _scalar(graph, b_scale)
    if a_scale.rank == 1:
        a_scale = graph.op("Unsqueeze", a_scale, np.array([1]))
    if "float" in a.dtype or "float" in b.dtype:
        factors = dequantize(graph, a, a_scale, a_zero), dequantize(graph, b, b_scale, b_zero)
        return quantize(graph, graph.op("MatMul", *factors), scale, zero, zero.dtype)
    total = matmul_of_integers(graph, a, b, a_zero, b_zero)
    return requantize(graph, total, (a_scale, b_scale), scale, zero, zero.dtype)


def _qgemm(graph: Graph, node: Node) -> Value:
    """Microsoft's Gemm of quantized matrices: the result is float32 without an output scale."""
    a, a_scale, a_zero, b, b_scale, b_zero = (node.input(position) for position in range(6))
    a = graph.op("Transpose", a, perm=[1, 0]) if node.attributes.get("transA", 0) else a
    b = graph.op("Transpose", b, perm=[1, 0]) if node.attributes.get("transB", 0) else b
    total = matmul_of_integers(graph, a, b, _scalar(graph, a_zero), _scalar(graph, b_zero))
    bias, scale, zero = (node.optional(position) for position in (6, 7, 8))
    total = total if bias is None else graph.op("Add", total, bias)
    alpha = np.float32(node.attributes.get("alpha", 1.0))
    factor = graph.op("Mul", graph.op("Mul", _scalar(graph, a_scale), _scalar(graph, b_scale)), alpha)
    result = dequantize(graph, total, factor, None)
    if scale is None:
        return result
    return quantize(graph, result, scale, zero, "uint8" if zero is None else zero.dtype)


def _matmul_integer_to_float(graph: Graph, node: Node) -> Value:
    a, b, a_scale, b_scale = (node.input(position) for position in range(4))
    total = matmul_of_integers(graph, a, b, node.optional(4), node.optional(5))
    factor = graph.op("Mul", _scalar(graph, a_scale), _scalar(graph, b_scale))
    result = dequantize(graph, total, factor, None)
    bias = node.optional(6)
    return result if bias is None else graph.op("Add", result, bias)


def _dynamic_quantize_matmul(graph: Graph, node: Node) -> Value:
    """Microsoft's DynamicQuantizeMatMul: quantizes a by its range, then multiplies integers."""
    a, a_scale, a_zero = graph.ops("DynamicQuantizeLinear", 3, node.input(0))
    total = matmul_of_integers(graph, a, node.input(1), a_zero, node.optional(3))
    result = dequantize(graph, total, graph.op("Mul", a_scale, _scalar(graph, node.input(2))), None)
    bias = node.optional(4)
    return result if bias is None else graph.op("Add", result, bias)


def _matmul_nbits(graph: Graph, node: Node) -> Value:
    """Microsoft's MatMulNBits: y = a w' + bias, with constant weights of a few bits.

    Each block of a row has a scale and a zero point. Weights of 4 or 8 bits in whole blocks stay packed.
    Others are unpacked to floats. `accuracy_level` 4 rounds `a` to 8 bits.
    """
    data, bits = node.input(0), int(node.attributes.get("bits", 4))
    depth, rows, block = (int(node.attributes[name]) for name in ("K", "N", "block_size"))
    if bits not in (2, 4, 8) or min(depth, rows, block) < 1:
        raise UnsupportedOperator(
            f"bits {bits}, K {depth}, N {rows} and block_size {block} aren't supported together"
        )
    if node.optional(4) is not None:
        raise UnsupportedOperator("an order of the weights (g_idx) isn't supported")
    blocks = -(-depth // block)
    packed, num_bytes = node.input(1).known("the weight"), block * bits // 8
    if packed.size != rows * blocks * num_bytes:
        raise UnsupportedOperator(f"the weight has {packed.size} bytes, not {rows * blocks * num_bytes}")
    packed = packed.reshape(rows, blocks, num_bytes)
    scale = node.input(2).known("the scale").astype(np.float32).reshape(rows, blocks, 1)
    zero: NDArray[np.float32] = np.array(1 << (bits - 1), np.float32)
    if (given := node.optional(3)) is not None:
        points = given.known("the zero point").reshape(rows, -1)
        points = _unpacked(points, bits)[:, :blocks] if given.dtype == "uint8" else points
        zero = points.astype(np.float32)[..., np.newaxis]
    bias = node.optional(5)
    # ONNX Runtime multiplies floats where zero points are floats.
    has_floats = given is not None and given.dtype != "uint8"
    if int(node.attributes.get("accuracy_level", 0)) == INT8_LEVEL and not has_floats:
        data = _rounded_to_bytes(graph, data, block)
    if bits in PACKED_BITS and depth % block == 0 and _multiplies(data, depth):
        zeros = np.broadcast_to(zero, scale.shape)[..., 0]
        product = _packed_product(graph, data, PackedWeight.of(packed, scale[..., 0], zeros, bits))
    else:
        codes = _unpacked(packed, bits)
        floats = ((codes.astype(np.float32) - zero) * scale).reshape(rows, -1)[:, :depth].T
        product = graph.op("MatMul", data, np.ascontiguousarray(floats.astype(numpy_dtype(data.dtype))))
    return product if bias is None else graph.op("Add", product, bias)


def _rounded_to_bytes(graph: Graph, data: Value, block: int) -> Value:
    """Return data whose blocks of the last axis are rounded to int8, each with a scale of its own.

        s = max(abs(x[b])) / 127
        y[b] = round(x[b] / s) * s

    If the extent isn't a multiple of `block`, the last block is shorter.
    """
    most = np.float32(127)
    depth = data.shape[-1]
    blocks = -(-depth // block)
    floats = cast(graph, data, "float32")
    if depth % block:
        pads = [0] * (2 * data.rank - 1) + [blocks * block - depth]
        floats = graph.op("Pad", floats, np.array(pads, np.int64))
    floats = graph.op("Reshape", floats, np.array([*data.shape[:-1], blocks, block], np.int64))
    scale = graph.op("Div", graph.op("ReduceMax", graph.op("Abs", floats), np.array([-1])), most)
    zero, one = np.float32(0), np.float32(1)
    # A block of zeros has the scale 0.
    divisor = graph.op("Where", graph.op("Equal", scale, zero), one, scale)
    integers = graph.op("Round", graph.op("Div", floats, divisor))
    rounded = graph.op("Mul", integers, scale)
    shape = np.array([*data.shape[:-1], blocks * block], np.int64)
    rounded = graph.op("Reshape", rounded, shape)
    if depth % block:
        rounded = graph.op("Slice", rounded, *(np.array([end]) for end in (0, depth, -1)))
    return cast(graph, rounded, data.dtype)


def _multiplies(data: Value, depth: int) -> bool:
    """Return whether data can be multiplied by a packed weight of `depth` rows."""
    return data.constant is None and data.dtype in _PACKED_FLOATS and data.shape[-1:] == (depth,)


def _packed_product(graph: Graph, data: Value, weight: PackedWeight) -> Value:
    """Return the product of data and a weight that stays packed.

    It is computed in float32. Halves are converted, as ONNX Runtime does.
    """
    product = packed_product(graph.builder, cast(graph, data, "float32").expr, weight)
    return cast(graph, graph.emit(product), data.dtype)


def _block_product(graph: Graph, data: Value, weight: Value) -> Value | None:
    """Return the product of data and a weight in blocks; None if it can't stay packed."""
    if not isinstance(weight, BlockQuantized) or weight.is_turned or not _multiplies(data, weight.shape[0]):
        return None
    codes = weight.codes
    if weight.bits == 4:
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return _packed_product(graph, data, PackedWeight.of(codes, weight.scales, weight.zeros, weight.bits))


def _matmul(graph: Graph, node: Node) -> Value | None:
    """Multiply by a weight in blocks.

        w = DequantizeLinear <axis = 0, block_size = 32> (codes, scales, zeros)
        y = MatMul(x, w)
    ->
        y = MatMulNBits <block_size = 32> (x, codes, scales, zeros)
    """
    return _block_product(graph, node.input(0), node.input(1))


def _gemm(graph: Graph, node: Node) -> Value | None:
    """Multiply by a weight in blocks, as `_matmul` does, and add the bias."""
    data, weight, bias = node.input(0), node.input(1), node.optional(2)
    given = node.attributes
    if given.get("transA", 0) or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
        return None
    if given.get("transB", 0) and isinstance(weight, BlockQuantized):
        weight = weight.turned()
    product = _block_product(graph, data, weight)
    return product if product is None or bias is None else graph.op("Add", product, bias)


def _transpose(_graph: Graph, node: Node) -> Value | None:
    weight = node.input(0)
    order = list(node.attributes.get("perm", [1, 0]))
    return weight.turned() if isinstance(weight, BlockQuantized) and order == [1, 0] else None


def _unpacked(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Unpack numbers from bytes along the last axis, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (values[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*values.shape[:-1], -1)


def _in_float(compute: Callable[[Graph, Node, Sequence[Value]], Value], operands: int) -> Converter:
    """Return the converter of Microsoft's QLinear operators: dequantize, compute in float32, quantize.

    Each operand is followed by its scale and zero point. The result's scale and zero point come last.
    """

    def convert(graph: Graph, node: Node) -> Value:
        values = [
            dequantize(
                graph, node.input(3 * k), _scalar(graph, node.input(3 * k + 1)), node.optional(3 * k + 2)
            )
            for k in range(operands)
        ]
        result = compute(graph, node, values)
        zero = node.optional(3 * operands + 1)
        dtype = node.input(0).dtype if zero is None else zero.dtype
        return quantize(graph, result, _scalar(graph, node.input(3 * operands)), zero, dtype)

    return convert


def _plain(kind: str, *attributes: str) -> Callable[[Graph, Node, Sequence[Value]], Value]:
    def compute(graph: Graph, node: Node, values: Sequence[Value]) -> Value:
        given = {name: node.attributes[name] for name in attributes if name in node.attributes}
        return graph.op(kind, *values, **given)

    return compute


def _global_average_pool(graph: Graph, node: Node, values: Sequence[Value]) -> Value:
    if node.attributes.get("channels_last", 0):
        raise UnsupportedOperator("channels_last isn't supported")
    return graph.op("GlobalAveragePool", *values)


def _softmax(graph: Graph, node: Node, values: Sequence[Value]) -> Value:
    return graph.op("Softmax", *values, axis=node.attributes.get("axis", -1))


def _qlinear_concat(graph: Graph, node: Node) -> Value:
    scale, zero = node.input(0), node.input(1)
    parts = [
        dequantize(graph, node.input(position), node.input(position + 1), node.input(position + 2))
        for position in range(2, len(node.inputs), 3)
    ]
    joined = graph.op("Concat", *parts, axis=int(node.attributes["axis"]))
    return quantize(graph, joined, scale, zero, zero.dtype)


# What operators do with a weight in blocks. None leaves a node to the other importers.
FORMS: Mapping[str, Converter] = {"MatMul": _matmul, "Gemm": _gemm, "Transpose": _transpose}
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_MICROSOFT = "com.microsoft"
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    **{(domain, "QuantizeLinear"): _quantize_linear for domain in ("", _MICROSOFT)},
    **{(domain, "DequantizeLinear"): _dequantize_linear for domain in ("", _MICROSOFT)},
    ("", "DynamicQuantizeLinear"): _dynamic_quantize_linear,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "ConvInteger"): _conv_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    (_MICROSOFT, "QGemm"): _qgemm,
    (_MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
    (_MICROSOFT, "MatMulNBits"): _matmul_nbits,
    (_MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    (_MICROSOFT, "QLinearAdd"): _in_float(_plain("Add"), 2),
    (_MICROSOFT, "QLinearMul"): _in_float(_plain("Mul"), 2),
    (_MICROSOFT, "QLinearSigmoid"): _in_float(_plain("Sigmoid"), 1),
    (_MICROSOFT, "QLinearLeakyRelu"): _in_float(_plain("LeakyRelu", "alpha"), 1),
    (_MICROSOFT, "QLinearAveragePool"): _in_float(_plain("AveragePool", *_POOL), 1),
    (_MICROSOFT, "QLinearGlobalAveragePool"): _in_float(_global_average_pool, 1),
    (_MICROSOFT, "QLinearSoftmax"): _in_float(_softmax, 1),
    (_MICROSOFT, "QLinearConcat"): _qlinear_concat,
}
