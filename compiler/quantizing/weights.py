"""Quantize the weights of matrix products as MatMulNBits: each block has a scale and a zero point."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from compiler.importing.onnx_file import walk
from compiler.quantizing.preparation import FLOATS

DOMAIN, OPERATOR = "com.microsoft", "MatMulNBits"
# The number of consecutive weights in a column that share a scale and a zero point.
BLOCK = 32


def quantize_weights(proto: onnx.ModelProto, bits: int, kept: Collection[str]) -> onnx.ModelProto:
    """Replace each product with a constant matrix by MatMulNBits. The nodes named in `kept` stay unchanged.

    MatMul(a, w)        ->  MatMulNBits(a, codes, scales, zeros)    # w = (codes - zeros) * scales
    Gemm(a, w, bias)    ->  Add(MatMulNBits(a, codes, scales, zeros), bias)
    """
    quantized = onnx.ModelProto()
    quantized.CopyFrom(proto)
    graph = quantized.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    packed: dict[tuple[str, bool], list[str]] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = constants.get(node.input[1]) if len(node.input) > 1 else None
        if weight is None or node.name in kept or not _is_product(node, weight):
            nodes.append(node)
            continue
        is_transposed = node.op_type == "Gemm" and _attribute(node, "transB", 0) == 1
        key = (weight.name, is_transposed)
        if key not in packed:
            array = numpy_helper.to_array(weight)
            tensors = _packed(array if is_transposed else array.T, bits, f"{weight.name}_{len(packed)}")
            graph.initializer.extend(tensors)
            packed[key] = [tensor.name for tensor in tensors]
        columns, depth = weight.dims if is_transposed else reversed(weight.dims)
        bias = node.input[2] if len(node.input) > 2 else ""
        product = f"{node.output[0]}_product" if bias else node.output[0]
        nodes.append(
            helper.make_node(
                OPERATOR,
                [node.input[0], *packed[key]],
                [product],
                f"{node.name}_product" if bias else node.name,
                domain=DOMAIN,
                K=depth,
                N=columns,
                bits=bits,
                block_size=BLOCK,
            )
        )
        if bias:
            nodes.append(helper.make_node("Add", [product, bias], node.output, node.name))
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for each in walk(quantized) for node in each.node for name in node.input}
    read |= {value.name for value in graph.output}
    for name in {name for name, _ in packed} - read:
        graph.initializer.remove(constants[name])
    if packed and DOMAIN not in {entry.domain for entry in quantized.opset_import}:
        quantized.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return quantized


def _is_product(node: onnx.NodeProto, weight: onnx.TensorProto) -> bool:
    """Return whether a node only multiplies a value by this constant matrix, and perhaps adds a bias."""
    is_matrix = len(weight.dims) == 2 and min(weight.dims) > 0 and weight.data_type in FLOATS
    if not is_matrix or node.domain or weight.name == node.input[0]:
        return False
    if node.op_type == "MatMul":
        return weight.dims[0] >= BLOCK
    is_plain = all(_attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
    depth = weight.dims[1 if _attribute(node, "transB", 0) else 0]
    return node.op_type == "Gemm" and is_plain and not _attribute(node, "transA", 0) and depth >= BLOCK


def _attribute(node: onnx.NodeProto, name: str, otherwise: float) -> float:
    found = next((one for one in node.attribute if one.name == name), None)
    return otherwise if found is None else helper.get_attribute_value(found)


def _packed(rows: NDArray[Any], bits: int, name: str) -> list[onnx.TensorProto]:
    """Return the codes, scales and zero points of a transposed weight: `rows` are its matrix's columns."""
    most = (1 << bits) - 1
    columns, depth = rows.shape
    count = -(-depth // BLOCK)
    padded = np.zeros((columns, count * BLOCK), np.float32)
    padded[:, :depth] = rows
    blocks = padded.reshape(columns, count, BLOCK)
    low, high = np.minimum(blocks.min(-1), 0.0), np.maximum(blocks.max(-1), 0.0)
    scales = ((high - low) / most).astype(rows.dtype)
    steps = np.where(scales > 0, scales, 1).astype(np.float32)
    zeros = np.clip(np.rint(-low / steps), 0, most)
    codes = np.clip(np.rint(blocks / steps[..., np.newaxis]) + zeros[..., np.newaxis], 0, most)
    return [
        numpy_helper.from_array(_joined(codes.astype(np.uint8), bits), f"{name}_codes"),
        numpy_helper.from_array(scales.reshape(-1), f"{name}_scales"),
        numpy_helper.from_array(_joined(zeros.astype(np.uint8), bits).reshape(-1), f"{name}_zeros"),
    ]


def _joined(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes of a few bits into bytes along the last axis. The first code is in the lowest bits."""
    per_byte = 8 // bits
    extra = -codes.shape[-1] % per_byte
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, extra)])
    parts = padded.reshape(*codes.shape[:-1], -1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << shifts, axis=-1).astype(np.uint8)
