"""Decoders with random weights, like exported ones: open lengths, caches as inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Extent = int | str
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class DecoderScale:
    """Extents of a decoder.

    `size` is the size of a head, `longest` the number of positions in tables. Rotary embeddings have the
    frequencies `rotary_base ** (-2 k / size)`. A matrix of `n` rows has the standard deviation
    `spread / sqrt(n)`: with large ones, rounding errors grow from layer to layer.
    """

    words: int = 50
    features: int = 32
    heads: int = 4
    grouped_heads: int = 2
    size: int = 8
    layers: int = 2
    longest: int = 64
    rotary_base: float = 100
    spread: float = 1.7


TINY = DecoderScale()


@dataclass
class Network:
    """Builds a decoder. Methods add nodes, and return the names of their results."""

    scale: DecoderScale
    kv_heads: int
    seed: int = 0
    tokens: Extent = "sequence"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.ids = self.input("input_ids", TensorProto.INT64, 1, self.tokens)

    def input(self, name: str, kind: int, *shape: Extent) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, value: str, *shape: Extent) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"node {name}", **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64, name: str = "") -> str:
        name = name or f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, spread: float = 0.3, name: str = "") -> str:
        return self.constant(self.rng.standard_normal(shape) * spread, np.float32, name)

    def linear(self, x: str, inputs: int, outputs: int, bias: bool = True, name: str = "") -> str:
        weight = self.weight(inputs, outputs, spread=self.scale.spread * inputs**-0.5, name=name)
        product = self.op("MatMul", x, weight)
        return self.op("Add", product, self.weight(outputs)) if bias else product

    def norm(self, x: str, name: str) -> str:
        """Add RMSNorm as exporters write it."""
        square = self.op("ReduceMean", self.op("Mul", x, x), axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", square, self.constant(1e-6, np.float32)))
        return self.op("Mul", self.op("Div", x, root), self.weight(self.scale.features, spread=1, name=name))

    def layer_norm(self, x: str) -> str:
        scale, shift = self.weight(self.scale.features, spread=1), self.weight(self.scale.features)
        return self.op("LayerNormalization", x, scale, shift, axis=-1)

    def extent(self, value: str, axis: int) -> str:
        """Add the extent of an axis as a tensor of one element."""
        return self.op("Gather", self.op("Shape", value), self.constant([axis]), axis=0)

    def range(self, start: str, limit: str) -> str:
        scalars = [self.op("Squeeze", one) for one in (start, limit)]
        return self.op("Range", *scalars, self.constant(1))

    def heads(self, x: str, heads: int) -> str:
        """(1, tokens, heads * size) -> (1, heads, tokens, size)"""
        shape = self.op(
            "Concat", self.constant([1]), self.extent(x, 1), self.constant([heads, self.scale.size]), axis=0
        )
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def past(self, layer: int, kind: str) -> str:
        shape = (1, self.kv_heads, "past", self.scale.size)
        return self.input(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, *shape)

    def append(self, layer: int | str, past: Sequence[str], rows: Sequence[str]) -> list[str]:
        joined = []
        for kind, old, new in zip(("key", "value"), past, rows, strict=True):
            joined.append(self.op("Concat", old, new, axis=2))
            self.output(f"present.{layer}.{kind}", joined[-1], 1, self.kv_heads, "total", self.scale.size)
        return joined

    def repeated(self, x: str) -> str:
        """Repeat heads of keys and values, as grouped queries need them."""
        groups = self.scale.heads // self.kv_heads
        length = self.extent(x, 2)
        parts = self.constant([1, self.kv_heads, groups]), self.constant([self.scale.size])
        wide = self.op("Concat", parts[0], length, parts[1], axis=0)
        wide = self.op("Expand", self.op("Unsqueeze", x, self.constant([2])), wide)
        shape = self.op(
            "Concat", self.constant([1, self.scale.heads]), length, self.constant([self.scale.size]), axis=0
        )
        return self.op("Reshape", wide, shape)

    def attend(self, query: str, key: str, value: str, mask: str | None) -> str:
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(self.scale.size**-0.5, np.float32))
        if mask is not None:
            scores = self.op("Add", scores, mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        turned = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        ends = self.constant([1]), self.constant([self.scale.features])
        return self.op("Reshape", turned, self.op("Concat", ends[0], self.extent(turned, 1), ends[1], axis=0))

    def model(self, logits: str) -> bytes:
        self.output("logits", logits, 1, self.tokens, self.scale.words)
        self.outputs.insert(0, self.outputs.pop())
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.weights)
        domains = {node.domain for node in self.nodes if node.domain}
        opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def gpt2(tokens: Extent = "sequence", scale: DecoderScale = TINY) -> bytes:
    """GPT-2: learned positions from the cache's length, masks sliced from a table, tied embeddings."""
    net = Network(scale, scale.heads, tokens=tokens)
    features, heads = scale.features, scale.heads
    words = net.weight(scale.words, features, spread=1)
    mask_input = net.input("attention_mask", TensorProto.INT64, 1, "past + sequence")
    pasts = [[net.past(layer, kind) for kind in ("key", "value")] for layer in range(scale.layers)]
    length = net.extent(pasts[0][0], 2)
    total = net.op("Add", length, net.extent(net.ids, 1))
    positions = net.op("Unsqueeze", net.range(length, total), net.constant([0]))
    x = net.op("Gather", words, net.ids)
    x = net.op("Add", x, net.op("Gather", net.weight(scale.longest, features, spread=1), positions))
    floats = net.op("Cast", net.op("Unsqueeze", mask_input, net.constant([1, 2])), to=TensorProto.FLOAT)
    lowest = net.constant(LOWEST, np.float32)
    padding = net.op("Mul", net.op("Sub", net.constant(1, np.float32), floats), lowest)
    causal = net.constant(np.tril(np.ones((1, 1, scale.longest, scale.longest))), bool)
    for layer, past in enumerate(pasts):
        joint = net.linear(net.layer_norm(x), features, 3 * features)
        query, *rows = (
            net.heads(net.op("Slice", joint, *(net.constant([n]) for n in ends)), heads)
            for ends in ((k * features, (k + 1) * features, 2) for k in range(3))
        )
        key, value = net.append(layer, past, rows)
        end = net.extent(key, 2)
        start = net.op("Sub", end, net.extent(query, 2))
        part = net.op("Slice", causal, start, end, net.constant([2]))
        part = net.op("Slice", part, net.constant([0]), end, net.constant([3]))
        mask = net.op("Where", part, net.constant(0, np.float32), lowest)
        mask = net.op("Max", net.op("Add", mask, padding), lowest)
        x = net.op("Add", x, net.linear(net.attend(query, key, value, mask), features, features))
        inner = net.linear(net.layer_norm(x), features, 2 * features)
        inner = net.op("Mul", inner, net.op("Sigmoid", inner))
        x = net.op("Add", x, net.linear(inner, 2 * features, features))
    return net.model(net.op("MatMul", net.layer_norm(x), net.op("Transpose", words, perm=[1, 0])))


def _rotated(net: Network, x: str, cos: str, sin: str) -> str:
    half = [net.constant([n]) for n in (0, net.scale.size // 2, net.scale.size)]
    first = net.op("Slice", x, half[0], half[1], net.constant([3]))
    second = net.op("Slice", x, half[1], half[2], net.constant([3]))
    turned = net.op("Concat", net.op("Neg", second), first, axis=-1)
    return net.op("Add", net.op("Mul", x, cos), net.op("Mul", turned, sin))


def llama(
    bias: bool = False, seed: int = 1, scale: DecoderScale = TINY, network: type[Network] = Network
) -> bytes:
    """Rotary embeddings of given positions, grouped heads, RMSNorm, gates; with `bias`, as Qwen has it.

    Weights have the names that llama.cpp gives them.
    """
    net = network(scale, scale.grouped_heads, seed)
    features, heads = scale.features, scale.heads
    mask_input = net.input("attention_mask", TensorProto.INT64, 1, "total")
    positions = net.input("position_ids", TensorProto.INT64, 1, "sequence")
    pasts = [[net.past(layer, kind) for kind in ("key", "value")] for layer in range(scale.layers)]
    length, count = net.extent(pasts[0][0], 2), net.extent(net.ids, 1)
    total = net.op("Add", length, count)
    x = net.op("Gather", net.weight(scale.words, features, spread=1, name="token_embd.weight"), net.ids)
    # The keys at or before each query, computed from ranges, without keys that the mask hides.
    queries = net.op("Unsqueeze", net.range(length, total), net.constant([1]))
    keys = net.op("Unsqueeze", net.range(net.constant([0]), total), net.constant([0]))
    later = net.op("Unsqueeze", net.op("Greater", keys, queries), net.constant([0, 1]))
    absent = net.op("Equal", net.op("Unsqueeze", mask_input, net.constant([1, 2])), net.constant(0))
    lowest = net.constant(LOWEST, np.float32)
    mask = net.op("Where", net.op("Or", later, absent), lowest, net.constant(0, np.float32))
    frequencies = net.constant(
        1 / scale.rotary_base ** (np.arange(scale.size // 2) * 2 / scale.size), np.float32
    )
    angles = net.op("Unsqueeze", net.op("Cast", positions, to=TensorProto.FLOAT), net.constant([2]))
    angles = net.op("Mul", angles, frequencies)
    angles = net.op("Unsqueeze", net.op("Concat", angles, angles, axis=-1), net.constant([1]))
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    for layer, past in enumerate(pasts):
        block = f"blk.{layer}"
        normal = net.norm(x, f"{block}.attn_norm.weight")
        width = net.kv_heads * scale.size
        query, key, value = (
            net.heads(net.linear(normal, features, outputs, bias, f"{block}.attn_{kind}.weight"), count)
            for kind, outputs, count in (
                ("q", features, heads),
                ("k", width, net.kv_heads),
                ("v", width, net.kv_heads),
            )
        )
        query, key = (_rotated(net, one, cos, sin) for one in (query, key))
        key, value = (net.repeated(one) for one in net.append(layer, past, [key, value]))
        attended = net.attend(query, key, value, mask)
        x = net.op("Add", x, net.linear(attended, features, features, False, f"{block}.attn_output.weight"))
        normal = net.norm(x, f"{block}.ffn_norm.weight")
        gate = net.linear(normal, features, 2 * features, False, f"{block}.ffn_gate.weight")
        gate = net.op("Mul", gate, net.op("Sigmoid", gate))
        up = net.linear(normal, features, 2 * features, False, f"{block}.ffn_up.weight")
        inner = net.op("Mul", gate, up)
        x = net.op("Add", x, net.linear(inner, 2 * features, features, False, f"{block}.ffn_down.weight"))
    logits = net.linear(net.norm(x, "output_norm.weight"), features, scale.words, False, "output.weight")
    return net.model(logits)


def qwen() -> bytes:
    return llama(bias=True, seed=2)


def whisper(tokens: Extent = "sequence", scale: DecoderScale = TINY) -> bytes:
    """A decoder without a mask input, with positions sliced from a table, and attention to an encoder."""
    net = Network(scale, scale.heads, 3, tokens)
    features, heads = scale.features, scale.heads
    states = net.input("encoder_hidden_states", TensorProto.FLOAT, 1, "audio", features)
    pasts = [
        [net.past(layer, f"decoder.{kind}") for kind in ("key", "value")] for layer in range(scale.layers)
    ]
    length, count = net.extent(pasts[0][0], 2), net.extent(net.ids, 1)
    total = net.op("Add", length, count)
    words, table = (net.weight(rows, features, spread=1) for rows in (scale.words, scale.longest))
    x = net.op("Gather", words, net.ids)
    x = net.op("Add", x, net.op("Slice", table, length, total, net.constant([0])))
    # A triangle for the new tokens, after columns for the past, as older exporters write it.
    square = net.op("Expand", net.constant(LOWEST, np.float32), net.op("Concat", count, count, axis=0))
    triangle = net.op("Trilu", square, net.constant(1), upper=1)
    zeros = net.op("Expand", net.constant(0, np.float32), net.op("Concat", count, length, axis=0))
    mask = net.op("Concat", zeros, triangle, axis=1)
    for layer, past in enumerate(pasts):
        normal = net.layer_norm(x)
        query, *rows = (net.heads(net.linear(normal, features, features), heads) for _ in range(3))
        key, value = net.append(f"{layer}.decoder", past, rows)
        x = net.op("Add", x, net.linear(net.attend(query, key, value, mask), features, features))
        query = net.heads(net.linear(net.layer_norm(x), features, features), heads)
        key, value = (net.heads(net.linear(states, features, features), heads) for _ in range(2))
        x = net.op("Add", x, net.linear(net.attend(query, key, value, None), features, features))
        inner = net.op("Relu", net.linear(net.layer_norm(x), features, 2 * features))
        x = net.op("Add", x, net.linear(inner, 2 * features, features))
    return net.model(net.op("MatMul", net.layer_norm(x), net.op("Transpose", words, perm=[1, 0])))


DECODERS: dict[str, Callable[[], bytes]] = {"gpt2": gpt2, "llama": llama, "qwen": qwen, "whisper": whisper}
