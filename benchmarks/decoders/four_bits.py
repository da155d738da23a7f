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
from onnx import numpy_helper

from examples.networks.decoders import DecoderScale, Network

Array = NDArray[Any]
BLOCK, ZERO = 32, 8
# Accuracy levels of MatMulNBits: it multiplies floats, or rounds activations to 8 bits.
FLOATS, BYTES = 0, 4
SCALES = ".scales"


class FourBits(Network):
    """A decoder whose products with matrices are MatMulNBits, which multiply floats."""

    def linear(self, x: str, inputs: int, outputs: int, bias: bool = True, name: str = "") -> str:
        weight = self.rng.standard_normal((inputs, outputs)) * self.scale.spread * inputs**-0.5
        codes, scales = quantized(weight.T.astype(np.float32))
        product = self.op(
            "MatMulNBits",
            x,
            self.constant(codes[..., 0::2] | (codes[..., 1::2] << 4), np.uint8, name),
            self.constant(scales, np.float32, f"{name}{SCALES}" if name else ""),
            domain="com.microsoft",
            K=inputs,
            N=outputs,
            bits=4,
            block_size=BLOCK,
            accuracy_level=FLOATS,
        )
        return self.op("Add", product, self.weight(outputs)) if bias else product


def with_accuracy_level(model: bytes, level: int) -> bytes:
    """Return a decoder of `FourBits` with another accuracy level, such as FLOATS or BYTES."""
    proto = onnx.load_from_string(model)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = level
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
    """Write the weights of a llama of `FourBits` as llama.cpp reads them: matrices as Q4_0."""
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
    weights = {one.name: one for one in onnx.load_from_string(model).graph.initializer}
    for name in filter(lambda name: name.endswith(".weight"), weights):
        weight = np.array(numpy_helper.to_array(weights[name]))
        if weight.dtype != np.uint8:
            writer.add_tensor(name, weight)
            continue
        codes = np.stack([weight & 15, weight >> 4], axis=-1).astype(np.float32)
        scales = numpy_helper.to_array(weights[f"{name}{SCALES}"])
        rows = ((codes.reshape(*scales.shape, BLOCK) - ZERO) * scales[..., None]).reshape(len(scales), -1)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            # llama.cpp rotates neighbours; the network rotates halves of a head.
            halves = rows.reshape(-1, 2, scale.size // 2, scale.features)
            rows = halves.swapaxes(1, 2).reshape(-1, scale.features)
        writer.add_tensor(name, gguf.quants.quantize(rows, q4), raw_dtype=q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
