"""Decoders with weights of 4 bits: as MatMulNBits in an ONNX file, and as Q4_0 in a GGUF file.

Both formats hold `scale * (code - 8)` for blocks of 32 inputs of each output: the weights are equal.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from examples.networks.decoders import DecoderScale

Array = NDArray[Any]
BLOCK, ZERO = 32, 8


def with_four_bits(model: bytes) -> bytes:
    """Return an ONNX model whose products with constant matrices are MatMulNBits."""
    proto = onnx.load_from_string(model)
    weights = {one.name: one for one in proto.graph.initializer}
    for node in proto.graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or weight.dims[0] % BLOCK:
            continue
        codes, scales = quantized(numpy_helper.to_array(weight).T)
        packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
        weight.CopyFrom(numpy_helper.from_array(packed, weight.name))
        proto.graph.initializer.append(numpy_helper.from_array(scales, f"{weight.name}.scales"))
        outputs, blocks, _ = codes.shape
        node.CopyFrom(
            helper.make_node(
                "MatMulNBits",
                [*node.input, f"{weight.name}.scales"],
                node.output,
                name=node.name,
                domain="com.microsoft",
                K=blocks * BLOCK,
                N=outputs,
                bits=4,
                block_size=BLOCK,
            )
        )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return bytes(proto.SerializeToString())


def quantized(weight: Array) -> tuple[Array, Array]:
    """Return the codes (outputs, blocks, BLOCK) and the scales (outputs, blocks) of a matrix.

    As in ggml's Q4_0, the element with the largest magnitude gets the code 0.
    """
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    places = np.abs(blocks).argmax(axis=-1)[..., None]
    extremes = np.take_along_axis(blocks, places, axis=-1)[..., 0]
    scales = (extremes / -ZERO).astype(np.float16).astype(np.float32)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.clip(np.rint(blocks * inverse[..., None]) + ZERO, 0, 15).astype(np.uint8)
    return codes, scales


def write_gguf(file: Path, model: bytes, scale: DecoderScale) -> None:
    """Write the weights of `examples.networks.decoders.llama` as llama.cpp reads them: matrices as Q4_0."""
    gguf = importlib.import_module("gguf")
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_vocab_size(scale.words)
    writer.add_tokenizer_model("none")
    writer.add_context_length(scale.longest)
    writer.add_embedding_length(scale.features)
    writer.add_block_count(scale.layers)
    writer.add_feed_forward_length(2 * scale.features)
    writer.add_head_count(scale.heads)
    writer.add_head_count_kv(scale.grouped_heads)
    writer.add_rope_dimension_count(scale.size)
    writer.add_rope_freq_base(scale.rotary_base)
    writer.add_layer_norm_rms_eps(1e-6)
    q4 = gguf.GGMLQuantizationType.Q4_0
    for tensor in onnx.load_from_string(model).graph.initializer:
        if not tensor.name.endswith(".weight"):
            continue
        weight = np.array(numpy_helper.to_array(tensor), np.float32)
        if weight.ndim < 2 or tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, weight)
            continue
        codes, scales = quantized(weight.T)
        rows: Array = ((codes.astype(np.float32) - ZERO) * scales[..., None]).reshape(weight.T.shape)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            # llama.cpp rotates neighbours; the network rotates halves of a head.
            halves = rows.reshape(-1, 2, scale.size // 2, scale.features)
            rows = halves.swapaxes(1, 2).reshape(-1, scale.features)
        writer.add_tensor(tensor.name, gguf.quants.quantize(rows, q4), raw_dtype=q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
