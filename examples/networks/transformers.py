"""Transformers: the vision transformer ViT-B/16, BERT-base, and GPT-2 small."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from examples.networks.scale import Scale
from examples.onnx_builder import Graph, Tensor

BLOCKS, FEATURES, HEADS, HIDDEN = 12, 768, 12, 3072  # the same for ViT-B and BERT-base
PATCH = 16
POSITIONS = 512
GPT2_POSITIONS, GPT2_WORDS = 1024, 50257
# Residual branches are scaled down, or the sums would grow with every block.
BRANCH_GAIN = 0.25


def vit_b16(graph: Graph, scale: Scale) -> None:
    """ViT-B/16: patches of 16x16 pixels and a class token, normalized before attention and perceptron.

    Raises ValueError if the image size isn't a multiple of the patch size, or if the batch is dynamic.
    """
    if scale.size % PATCH:
        raise ValueError(f"vit_b16 cuts the image into patches: its size must be a multiple of {PATCH}")
    if isinstance(graph.batch, str):
        raise ValueError("vit_b16 stores a class token for every image: its batch must be a number")
    features, tokens = scale.channels(FEATURES), (scale.size // PATCH) ** 2 + 1
    x = graph.conv(graph.image(scale.size), "patches", features, PATCH, PATCH, pad=0, bias=True)
    flat = graph.reshape(x.name, "patches.flatten", features, tokens - 1)
    flat = graph.transpose(flat, "patches.transpose", 0, 2, 1)
    token = np.broadcast_to(graph.normal((1, 1, features), 1.0), (graph.batch, 1, features))
    joined = graph.node("Concat", "tokens", [graph.weight("class_token", token.copy()), flat], axis=1)
    positions = graph.weight("positions", graph.normal((1, tokens, features), 0.2))
    x = Tensor(graph.node("Add", "embedded", [joined, positions]), features)
    for index in range(min(BLOCKS, scale.max_blocks + 1)):
        x = _vit_block(graph, x, f"blocks.{index}", tokens, scale.channels(HIDDEN))
    x = graph.layer_norm(x, "norm", 1e-6)
    first = graph.node("Gather", "first", [x.name, graph.integers("class.index", 0)], axis=1)
    graph.gemm(Tensor(first, features), "head", scale.classes, graph.output("output", scale.classes))


def _vit_block(graph: Graph, x: Tensor, name: str, tokens: int, hidden: int) -> Tensor:
    y = _joint_attention(graph, graph.layer_norm(x, f"{name}.norm1", 1e-6), f"{name}.attn", tokens)
    x = graph.add(x, y, f"{name}.add1")
    y = _perceptron(graph, graph.layer_norm(x, f"{name}.norm2", 1e-6), f"{name}.mlp", hidden)
    return graph.add(x, y, f"{name}.add2")


def _joint_attention(graph: Graph, x: Tensor, name: str, tokens: int, mask: str | None = None) -> Tensor:
    """Attention with one matrix product for queries, keys and values. `mask` is added to the scores."""
    width = x.channels // HEADS
    joint = graph.linear(x, f"{name}.qkv", 3 * x.channels)
    parts = graph.reshape(joint.name, f"{name}.reshape", tokens, 3, HEADS, width)
    parts = graph.transpose(parts, f"{name}.transpose", 2, 0, 3, 1, 4)
    query, key, value = (
        graph.node("Gather", f"{name}.{part}", [parts, graph.integers(f"{name}.{part}.index", i)], axis=0)
        for i, part in enumerate(("query", "key", "value"))
    )
    scale = graph.scalar(f"{name}.scale", width**-0.5)
    query = graph.node("Mul", f"{name}.scaled", [query, scale])
    key = graph.transpose(key, f"{name}.key.transpose", 0, 1, 3, 2)
    scores = graph.node("MatMul", f"{name}.scores", [query, key])
    if mask is not None:
        scores = graph.node("Add", f"{name}.masked", [scores, mask])
    return _attend(graph, scores, value, name, tokens, x.channels)


def bert_base(graph: Graph, scale: Scale) -> None:
    """BERT-base: the encoder with its pooler. Normalization follows attention and perceptron."""
    features, tokens = scale.channels(FEATURES), scale.tokens
    words = graph.input("input_ids", tokens, element_type=TensorProto.INT64)
    mask = graph.input("attention_mask", tokens, element_type=TensorProto.INT64)
    types = graph.input("token_type_ids", tokens, element_type=TensorProto.INT64)
    masked = _additive_mask(graph, mask)
    x = _embeddings(graph, scale, words, types, features)
    blocks = min(BLOCKS, scale.max_blocks + 1)
    for index in range(blocks):
        last = graph.output("last_hidden_state", tokens, features) if index == blocks - 1 else None
        x = _bert_block(graph, x, f"layer.{index}", tokens, scale.channels(HIDDEN), masked, last)
    first = graph.node("Gather", "pooler.first", [x.name, graph.integers("pooler.index", 0)], axis=1)
    pooled = graph.gemm(Tensor(first, features), "pooler.dense", features)
    graph.node("Tanh", "pooler", [pooled.name], graph.output("pooler_output", features))


def gpt2(graph: Graph, scale: Scale) -> None:
    """GPT-2 small without a cache: the scores of the next token at every position of a prompt of fixed
    length.
    """
    features, tokens = scale.channels(FEATURES), scale.tokens
    words = graph.input("input_ids", tokens, element_type=TensorProto.INT64)
    count = GPT2_WORDS if scale.divisor == 1 else scale.words
    vocabulary = graph.weight("wte.weight", graph.normal((count, features), 0.5))
    positions = graph.weight("wpe.weight", graph.normal((GPT2_POSITIONS, features), 0.2))
    indices = graph.integers("position_ids", np.arange(tokens)[None])
    token = graph.node("Gather", "wte", [vocabulary, words], axis=0)
    position = graph.node("Gather", "wpe", [positions, indices], axis=0)
    x = Tensor(graph.node("Add", "embedded", [token, position]), features)
    lowest = np.triu(np.full((tokens, tokens), np.finfo(np.float32).min, np.float32), 1)
    mask = graph.weight("causal_mask", lowest[None, None])
    for index in range(min(BLOCKS, scale.max_blocks + 1)):
        name = f"h.{index}"
        y = _joint_attention(graph, graph.layer_norm(x, f"{name}.ln_1", 1e-5), f"{name}.attn", tokens, mask)
        x = graph.add(x, y, f"{name}.add1")
        y = graph.linear(graph.layer_norm(x, f"{name}.ln_2", 1e-5), f"{name}.fc1", scale.channels(HIDDEN))
        y = graph.linear(graph.gelu_tanh(y, f"{name}.gelu"), f"{name}.fc2", features, gain=BRANCH_GAIN)
        x = graph.add(x, y, f"{name}.add2")
    x = graph.layer_norm(x, "ln_f", 1e-5)
    scores = graph.transpose(vocabulary, "lm_head.transpose", 1, 0)
    graph.node("MatMul", "lm_head", [x.name, scores], graph.output("logits", tokens, count))


def encoder(graph: Graph, scale: Scale) -> None:
    """BERT-base's encoder alone. The dimension `tokens` of its inputs is dynamic."""
    features, tokens = scale.channels(FEATURES), "tokens"
    x = Tensor(graph.input("embeddings", tokens, features), features)
    masked = _additive_mask(graph, graph.input("attention_mask", tokens, element_type=TensorProto.INT64))
    blocks = min(BLOCKS, scale.max_blocks + 1)
    for index in range(blocks):
        last = graph.output("last_hidden_state", tokens, features) if index == blocks - 1 else None
        x = _bert_block(graph, x, f"layer.{index}", -1, scale.channels(HIDDEN), masked, last)


def _additive_mask(graph: Graph, mask: str) -> str:
    """Return 0 where the mask is 1, and the lowest float where it is 0."""
    wide = graph.node("Unsqueeze", "mask.unsqueeze", [mask, graph.integers("mask.axes", [1, 2])])
    attended = graph.node("Cast", "mask.cast", [wide], to=TensorProto.FLOAT)
    masked = graph.node("Sub", "mask.sub", [graph.scalar("mask.one", 1.0), attended])
    lowest = graph.scalar("mask.least", float(np.finfo(np.float32).min))
    return graph.node("Mul", "mask", [masked, lowest])


def _embeddings(graph: Graph, scale: Scale, words: str, types: str, features: int) -> Tensor:
    positions = graph.integers("embeddings.position_ids", np.arange(scale.tokens)[None])
    found = [
        graph.node(
            "Gather",
            f"embeddings.{name}",
            [graph.weight(f"embeddings.{name}.weight", graph.normal((count, features), 0.5)), indices],
            axis=0,
        )
        for name, count, indices in (
            ("word", scale.words, words), ("type", 2, types), ("position", POSITIONS, positions)
        )
    ]  # fmt: skip
    both = graph.node("Add", "embeddings.add1", found[:2])
    y = Tensor(graph.node("Add", "embeddings.add2", [both, found[2]]), features)
    return graph.layer_norm(y, "embeddings.norm", 1e-12)


def _bert_block(
    graph: Graph, x: Tensor, name: str, tokens: int, hidden: int, mask: str, output: str | None
) -> Tensor:
    y = _attention(graph, x, f"{name}.attention", tokens, mask)
    x = graph.layer_norm(graph.add(y, x, f"{name}.add1"), f"{name}.norm1", 1e-12)
    y = _perceptron(graph, x, f"{name}.mlp", hidden)
    return graph.layer_norm(graph.add(y, x, f"{name}.add2"), f"{name}.norm2", 1e-12, output)


def _attention(graph: Graph, x: Tensor, name: str, tokens: int, mask: str) -> Tensor:
    width = x.channels // HEADS
    order = {"query": (0, 2, 1, 3), "key": (0, 2, 3, 1), "value": (0, 2, 1, 3)}
    heads = {}
    for part, axes in order.items():
        y = graph.linear(x, f"{name}.{part}", x.channels)
        y_heads = graph.reshape(y.name, f"{name}.{part}.reshape", tokens, HEADS, width)
        heads[part] = graph.transpose(y_heads, f"{name}.{part}.transpose", *axes)
    scores = graph.node("MatMul", f"{name}.scores", [heads["query"], heads["key"]])
    root = graph.scalar(f"{name}.root", math.sqrt(width))
    scaled = graph.node("Div", f"{name}.scaled", [scores, root])
    scores = graph.node("Add", f"{name}.masked", [scaled, mask])
    return _attend(graph, scores, heads["value"], name, tokens, x.channels)


def _attend(graph: Graph, scores: str, value: str, name: str, tokens: int, features: int) -> Tensor:
    """Average the values with the softmax of the scores, join the heads, and project."""
    weights = graph.node("Softmax", f"{name}.softmax", [scores], axis=-1)
    mean = graph.node("MatMul", f"{name}.mean", [weights, value])
    joined = graph.transpose(mean, f"{name}.join", 0, 2, 1, 3)
    flat = graph.reshape(joined, f"{name}.flatten", tokens, features)
    return graph.linear(Tensor(flat, features), f"{name}.proj", features, gain=BRANCH_GAIN)


def _perceptron(graph: Graph, x: Tensor, name: str, hidden: int) -> Tensor:
    y = graph.gelu(graph.linear(x, f"{name}.fc1", hidden), f"{name}.gelu")
    return graph.linear(y, f"{name}.fc2", x.channels, gain=BRANCH_GAIN)
