"""Tiny networks like those that users submit, with seeded random weights.

They have features that exporters write but that `examples.networks` lacks: several inputs and outputs,
integers and masks, control flow, 8-bit and 16-bit types. Each can be tuned in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from examples.onnx_builder import Graph, Tensor

DIM = 32


def detector(graph: Graph) -> None:
    """A detection head over two scales, and non-maximum suppression: ten boxes for each of four classes."""
    x = graph.relu(graph.conv_bn(graph.image(16), "stem", 16, 3, 2), "stem.relu")
    found = []
    for scale, side in enumerate((8, 4)):
        x = x if scale == 0 else graph.relu(graph.conv_bn(x, "down", 16, 3, 2), "down.relu")
        cells = graph.conv(x, f"head{scale}", 8, 1, bias=True).name
        rows = graph.transpose(graph.reshape(cells, f"cells{scale}", 8, side * side), f"rows{scale}", 0, 2, 1)
        found.append(rows)
    rows = graph.node("Concat", "all", found, axis=1)
    sizes = graph.integers("sizes", [4, 4])
    graph.nodes.append(helper.make_node("Split", [rows, sizes], ["boxes", "logits"], axis=2))
    # The number of selected boxes depends on the data.
    scores = graph.transpose(graph.node("Sigmoid", "score", ["logits"]), "by_class", 0, 2, 1)
    limits = [graph.integers("limit", [10])]
    limits += [graph.scalar(name, value) for name, value in (("overlap", 0.5), ("least", 0.8))]
    graph.node("NonMaxSuppression", "select", ["boxes", scores, *limits], "selected")
    at = graph.node("Gather", "places", ["selected", graph.integers("columns", [0, 2])], axis=1)
    graph.node("GatherND", "found_boxes", ["boxes", at], "found_boxes")
    graph.node("GatherND", "found_scores", [scores, "selected"], "found_scores")
    for name, kind, extents in (
        ("selected", TensorProto.INT64, [None, 3]),
        ("found_boxes", TensorProto.FLOAT, [None, 4]),
        ("found_scores", TensorProto.FLOAT, [None]),
    ):
        graph.outputs.append(helper.make_tensor_value_info(name, kind, extents))


def segmenter(graph: Graph) -> None:
    """A U-Net of one level: pooling, bilinear resize, transposed convolution, concatenation."""
    x = graph.relu(graph.conv(graph.image(16), "in", 8, 3, bias=True), "in.relu")
    low = graph.relu(graph.conv(graph.max_pool(x, "pool"), "low", 16, 3, bias=True), "low.relu")
    scales = graph.weight("scales", np.array([1, 1, 2, 2], np.float32))
    up = graph.node("Resize", "up", [low.name, "", scales], mode="linear")
    other = graph.conv_transposed(low, "other", 8, 2, 2, 0)
    joined = Tensor(graph.node("Concat", "join", [x.name, up, other.name], axis=1), 32)
    graph.node("Sigmoid", "mask", [graph.conv(joined, "out", 1, 1).name], graph.output("output", 1, 16, 16))


def speech(graph: Graph) -> None:
    """A convolution module of a speech encoder: gated, depthwise over time, normalized."""
    x = Tensor(graph.input("frames", 20, DIM), DIM)
    y = graph.linear(graph.layer_norm(x, "norm", 1e-5), "wide", 2 * DIM)
    graph.nodes.append(helper.make_node("Split", [y.name], ["value", "gate"], axis=2, name="glu"))
    gated = graph.node("Mul", "gated", ["value", graph.node("Sigmoid", "gate.sigmoid", ["gate"])])
    weight = graph.weight("depthwise.weight", graph.normal((DIM, 1, 5), 0.4))
    inputs = [graph.transpose(gated, "to_time", 0, 2, 1), weight]
    mixed = graph.node("Conv", "depthwise", inputs, group=DIM, kernel_shape=[5], pads=[2, 2])
    out = graph.linear(Tensor(graph.transpose(mixed, "from_time", 0, 2, 1), DIM), "out", DIM)
    graph.node("Add", "sum", [x.name, out.name], graph.output("output", 20, DIM))


def recurrent(graph: Graph) -> None:
    """Four steps of a gated recurrent cell, unrolled as by exporters."""
    x = graph.input("frames", 4, DIM)
    state = graph.input("state", DIM)
    for step in range(4):
        frame = graph.node("Gather", f"frame{step}", [x, graph.integers(f"at{step}", step)], axis=1)
        both = Tensor(graph.node("Concat", f"both{step}", [frame, state], axis=1), 2 * DIM)
        gate = graph.node("Sigmoid", f"gate{step}", [graph.gemm(both, f"update{step}", DIM).name])
        new = graph.node("Tanh", f"new{step}", [graph.gemm(both, f"candidate{step}", DIM).name])
        kept = graph.node("Mul", f"kept{step}", [gate, state])
        rest = graph.node("Sub", f"rest{step}", [graph.scalar(f"one{step}", 1.0), gate])
        added = graph.node("Mul", f"added{step}", [rest, new])
        state = graph.node(
            "Add", f"state{step}", [kept, added], graph.output("last", DIM) if step == 3 else None
        )


def attend(graph: Graph, query: str, key: str, value: str, name: str, mask: str = "") -> str:
    """Add attention of (batch, tokens, DIM) tensors with one head."""
    scores = graph.node("MatMul", f"{name}.scores", [query, graph.transpose(key, f"{name}.key", 0, 2, 1)])
    scaled = graph.node("Div", f"{name}.scaled", [scores, graph.scalar(f"{name}.root", DIM**0.5)])
    if mask:
        low = graph.scalar(f"{name}.low", -1e4)
        scaled = graph.node("Where", f"{name}.masked", [mask, scaled, low])
    weights = graph.node("Softmax", f"{name}.weights", [scaled], axis=-1)
    return graph.node("MatMul", f"{name}.mixed", [weights, value])


def decoder(graph: Graph) -> None:
    """One token of a decoder with a cache of keys and values and a mask of booleans."""
    token = graph.input("token", 1, element_type=TensorProto.INT64)
    past = [graph.input(f"past_{kind}", 7, DIM) for kind in ("key", "value")]
    mask = graph.input("mask", 1, 8, element_type=TensorProto.BOOL)
    table = graph.weight("embedding", graph.normal((50, DIM), 1.0))
    x = Tensor(graph.node("Gather", "embed", [table, token], axis=0), DIM)
    normal = graph.layer_norm(x, "norm", 1e-5)
    query, *new = (graph.linear(normal, name, DIM).name for name in ("query", "key", "value"))
    key, value = (
        graph.node("Concat", f"present.{kind}", [old, one], graph.output(f"present_{kind}", 8, DIM), axis=1)
        for kind, old, one in zip(("key", "value"), past, new, strict=True)
    )
    mixed = graph.linear(Tensor(attend(graph, query, key, value, "self", mask), DIM), "project", DIM)
    hidden = graph.add(x, mixed, "residual")
    logits = graph.linear(graph.layer_norm(hidden, "last", 1e-5), "logits", 50)
    graph.node("Identity", "output", [logits.name], graph.output("output", 1, 50))


def windows(graph: Graph) -> None:
    """A vision transformer's shifted windows: rolled by slices, split by reshapes, with attention in each."""
    x = graph.input("tokens", 8, 8, DIM)
    parts = []
    for name, start, end in (("rest", 2, 8), ("first", 0, 2)):
        ends = [graph.integers(f"{name}.{which}", [n]) for which, n in (("start", start), ("end", end))]
        parts.append(graph.node("Slice", name, [x, *ends, graph.integers(f"{name}.axis", [1])]))
    rolled = graph.node("Concat", "rolled", parts, axis=1)
    cut = graph.transpose(graph.reshape(rolled, "cut", 2, 4, 2, 4, DIM), "ordered", 0, 1, 3, 2, 4, 5)
    flat = graph.node("Reshape", "windows", [cut, graph.integers("windows.shape", [4, 16, DIM])])
    query, key, value = (graph.linear(Tensor(flat, DIM), name, DIM).name for name in ("q", "k", "v"))
    mixed = attend(graph, query, key, value, "window")
    graph.node("Add", "sum", [flat, mixed], "output")
    graph.outputs.append(helper.make_tensor_value_info("output", TensorProto.FLOAT, [4, 16, DIM]))


def diffusion(graph: Graph) -> None:
    """A block of a diffusion model: instance normalization, SiLU, and a shift by the time step."""
    x, time = graph.image(8), Tensor(graph.input("time", DIM), DIM)
    x = graph.conv(x, "in", 16, 3, bias=True)
    scale, shift = (graph.weight(f"norm.{name}", graph.normal((16,), 1.0)) for name in ("scale", "shift"))
    normal = graph.silu(
        Tensor(graph.node("InstanceNormalization", "norm", [x.name, scale, shift]), 16), "silu"
    )
    by = graph.reshape(graph.gemm(graph.silu(time, "time.silu"), "time.project", 16).name, "by", 16, 1, 1)
    shifted = Tensor(graph.node("Add", "shifted", [normal.name, by]), 16)
    out = graph.conv(shifted, "out", 16, 3, bias=True)
    graph.node("Add", "sum", [x.name, out.name], graph.output("output", 16, 8, 8))


def super_resolution(graph: Graph) -> None:
    """Two convolutions and a pixel shuffle, which turns channels into pixels."""
    x = graph.relu(graph.conv(graph.image(8), "in", 16, 3, bias=True), "relu")
    graph.node(
        "DepthToSpace",
        "up",
        [graph.conv(x, "out", 12, 3).name],
        graph.output("output", 3, 16, 16),
        blocksize=2,
    )


def recommender(graph: Graph) -> None:
    """Embeddings of ids, their products with each other, and a few layers."""
    ids = graph.input("ids", 3, element_type=TensorProto.INT64)
    dense = Tensor(graph.input("features", 8), 8)
    table = graph.weight("embedding", graph.normal((100, 16), 1.0))
    found = graph.node("Gather", "embed", [table, ids], axis=0)
    products = graph.node("MatMul", "products", [found, graph.transpose(found, "turned", 0, 2, 1)])
    joined = graph.node("Concat", "join", [dense.name, graph.reshape(products, "flat", 9)], axis=1)
    x = graph.relu(graph.gemm(Tensor(joined, 17), "hidden", 24), "relu")
    graph.node("Sigmoid", "chance", [graph.gemm(x, "out", 1).name], graph.output("output", 1))


def points(graph: Graph) -> None:
    """A cloud of points: layers for each point, the maximum over all of them."""
    cloud = Tensor(graph.input("points", 24, 3), 3)
    x = graph.relu(graph.linear(graph.relu(graph.linear(cloud, "first", 16), "r1"), "second", DIM), "r2")
    top = graph.node("ReduceMax", "top", [x.name], axes=[1], keepdims=0)
    graph.gemm(Tensor(top, DIM), "classes", 10, graph.output("output", 10))


def neighbours(graph: Graph) -> None:
    """A graph network: messages along edges, summed at each node."""
    nodes = Tensor(graph.input("nodes", 12, 16), 16)
    sources = graph.integers("sources", np.arange(24) * 5 % 12)
    arriving = np.zeros((12, 24), np.float32)
    arriving[np.arange(24) * 7 % 12, np.arange(24)] = 1.0
    sent = graph.node("Gather", "sent", [nodes.name, sources], axis=1)
    messages = graph.relu(graph.linear(Tensor(sent, 16), "message", 16), "relu")
    added = graph.node("MatMul", "added", [graph.weight("arriving", arriving), messages.name])
    out = graph.linear(Tensor(added, 16), "out", 16)
    graph.node("Add", "sum", [nodes.name, out.name], graph.output("output", 12, 16))


def experts(graph: Graph) -> None:
    """A mixture of two experts: the larger logit chooses one."""
    x = Tensor(graph.input("tokens", 6, DIM), DIM)
    chosen = graph.node("ArgMax", "chosen", [graph.linear(x, "router", 2).name], axis=-1, keepdims=1)
    is_first = graph.node("Equal", "is_first", [chosen, graph.integers("first", 0)])
    one, other = (graph.gelu(graph.linear(x, f"expert{at}", DIM), f"gelu{at}").name for at in range(2))
    graph.node("Where", "mixed", [is_first, one, other], graph.output("output", 6, DIM))


def forecaster(graph: Graph) -> None:
    """Dilated causal convolutions over time, with a residual."""
    x = graph.input("series", 16, 24)
    for dilation in (1, 2, 4):
        weight = graph.weight(f"conv{dilation}.weight", graph.normal((16, 16, 3), 0.15))
        y = graph.node(
            "Conv",
            f"conv{dilation}",
            [x, weight],
            kernel_shape=[3],
            dilations=[dilation],
            pads=[2 * dilation, 0],
        )
        y = graph.node("Relu", f"relu{dilation}", [y])
        x = graph.node(
            "Add", f"sum{dilation}", [x, y], graph.output("output", 16, 24) if dilation == 4 else None
        )


def branches(graph: Graph) -> None:
    """Control flow with a constant condition, as exporters leave it behind."""
    x = graph.relu(graph.gemm(Tensor(graph.input("features", DIM), DIM), "hidden", DIM), "relu")
    arms = []
    for name, op in (("then", "Tanh"), ("else", "Sigmoid")):
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        arms.append(helper.make_graph([helper.make_node(op, [x.name], [name])], name, [], [result]))
    condition = graph.weight("condition", np.array(True))
    graph.node(
        "If", "branch", [condition], graph.output("output", DIM), then_branch=arms[0], else_branch=arms[1]
    )


def quantized(graph: Graph) -> None:
    """Two convolutions between bytes, as quantizers write them."""

    def through_bytes(x: str, name: str, zero: int) -> str:
        ends = [graph.scalar(f"{name}.scale", 0.05), graph.weight(f"{name}.zero", np.array(zero, np.uint8))]
        stored = graph.node("QuantizeLinear", f"{name}.store", [x, *ends])
        return graph.node("DequantizeLinear", f"{name}.read", [stored, *ends])

    def weight(name: str, *shape: int) -> str:
        values = graph.rng.integers(-127, 128, shape).astype(np.int8)
        scale = graph.weight(f"{name}.scale", np.full(shape[0], 0.003, np.float32))
        zero = graph.weight(f"{name}.zero", np.zeros(shape[0], np.int8))
        return graph.node(
            "DequantizeLinear", name, [graph.weight(f"{name}.bytes", values), scale, zero], axis=0
        )

    x = through_bytes(graph.image(12).name, "in", 128)
    x = graph.node("Conv", "first", [x, weight("first.weight", 16, 3, 3, 3)], pads=[1, 1, 1, 1])
    x = through_bytes(graph.node("Relu", "relu", [x]), "middle", 0)
    x = graph.node("Conv", "second", [x, weight("second.weight", 24, 16, 3, 3)], pads=[1, 1, 1, 1])
    graph.node("Identity", "output", [through_bytes(x, "out", 121)], graph.output("output", 24, 12, 12))


def narrow(graph: Graph, element_type: int) -> None:
    """Two layers and a softmax whose weights and values have 16 bits."""
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    x = graph.node("Cast", "narrow", [graph.input("features", 4, DIM)], to=element_type)
    for layer in ("first", "second"):
        weight = graph.weight(f"{layer}.weight", graph.normal((DIM, DIM), DIM**-0.5).astype(dtype))
        product = graph.node("MatMul", f"{layer}.product", [x, weight])
        bias = graph.weight(f"{layer}.bias", graph.normal((DIM,), 0.1).astype(dtype))
        x = graph.node("Relu", f"{layer}.relu", [graph.node("Add", layer, [product, bias])])
    chances = graph.node("Softmax", "softmax", [x], axis=-1)
    graph.node("Cast", "widen", [chances], graph.output("output", 4, DIM), to=TensorProto.FLOAT)


def half(graph: Graph) -> None:
    narrow(graph, TensorProto.FLOAT16)


def brain_float(graph: Graph) -> None:
    narrow(graph, TensorProto.BFLOAT16)


ZOO: dict[str, Callable[[Graph], None]] = {
    network.__name__: network
    for network in (
        *(detector, segmenter, speech, recurrent, decoder, windows, diffusion, super_resolution),
        *(recommender, points, neighbours, experts, forecaster, branches, quantized),
        *(half, brain_float),
    )
}


def make(name: str) -> onnx.ModelProto:
    """Build a network as a checked ONNX model; the same name gives the same bytes."""
    graph = Graph(np.random.default_rng(0))
    ZOO[name](graph)
    return graph.build(name)
