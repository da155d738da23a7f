"""Tiny ONNX models of every kind, with seeded random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

Extent = int | str


@dataclass
class Builder:
    """Collects nodes. Every method returns the name of its result."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, *shape: int, low: float = -0.5, high: float = 0.5) -> str:
        return self.constant(self.rng.uniform(low, high, shape).astype(np.float32))

    def constant(self, value: ArrayLike) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def batch_norm(self, x: str, channels: int) -> str:
        mean, shift = self.weight(channels), self.weight(channels)
        scale, variance = (self.weight(channels, low=0.5, high=1.5) for _ in range(2))
        return self.op("BatchNormalization", x, scale, shift, mean, variance)

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, **attributes: Any) -> str:
        weight = self.weight(outputs, inputs // attributes.get("group", 1), *[kernel] * 2)
        return self.op("Conv", x, weight, pads=[kernel // 2] * 4, **attributes)

    def model(
        self, inputs: Mapping[str, Sequence[Extent]], outputs: Mapping[str, Sequence[Extent] | None]
    ) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "tiny",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in outputs.items()
            ],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(model.SerializeToString())


def unsteady(layers: int, factor: float) -> bytes:
    """A network of bytes in which a rounding error grows from layer to layer."""
    rng = np.random.default_rng(0)
    b = Builder()
    scale, zero = b.constant(np.array(1 / 127, np.float32)), b.constant(np.array(0, np.int8))

    def rounded(name: str) -> str:
        return b.op("DequantizeLinear", b.op("QuantizeLinear", name, scale, zero), scale, zero)

    x = rounded("input")
    for _ in range(layers):
        mixed, _ = np.linalg.qr(rng.standard_normal((256, 256)))
        x = rounded(b.op("Sin", b.op("MatMul", x, b.constant((factor * mixed).astype(np.float32)))))
    return b.model({"input": [16, 256]}, {x: [16, 256]})


def residual(batch: Extent = 1, size: int = 8) -> bytes:
    """Two convolutions with batch norms around a residual addition, pooling and a classifier."""
    b = Builder()
    first = b.op("Relu", b.batch_norm(b.conv("input", 3, 16, 3), 16))
    second = b.batch_norm(b.conv(first, 16, 16, 3), 16)
    joined = b.op("Relu", b.op("Add", second, first))
    flat = b.op("Flatten", b.op("GlobalAveragePool", joined))
    result = b.op("Gemm", flat, b.weight(10, 16), b.weight(10), transB=1)
    return b.model({"input": [batch, 3, size, size]}, {result: [batch, 10]})


def depthwise() -> bytes:
    """An inverted residual: pointwise, depthwise, pointwise, clipped at 6."""
    b = Builder()
    low, high = b.constant(np.float32(0)), b.constant(np.float32(6))
    x = b.op("Clip", b.batch_norm(b.conv("input", 8, 24, 1), 24), low, high)
    x = b.op("Clip", b.batch_norm(b.conv(x, 24, 24, 3, group=24, strides=[2, 2]), 24), low, high)
    x = b.batch_norm(b.conv(x, 24, 8, 1), 8)
    return b.model({"input": [1, 8, 8, 8]}, {x: [1, 8, 4, 4]})


def transposed() -> bytes:
    """A generator's layer: transposed convolution, batch norm, tanh."""
    b = Builder()
    x = b.op("ConvTranspose", "input", b.weight(8, 6, 4, 4), strides=[2, 2], pads=[1] * 4)
    x = b.op("Tanh", b.batch_norm(x, 6))
    return b.model({"input": [1, 8, 4, 4]}, {x: [1, 6, 8, 8]})


def decoder() -> bytes:
    """A U-Net's decoder: a transposed convolution, concatenated with an earlier tensor."""
    b = Builder()
    first = b.op("Relu", b.conv("input", 3, 8, 3))
    low = b.op("Relu", b.conv(b.op("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 8, 16, 3))
    high = b.op("ConvTranspose", low, b.weight(16, 8, 2, 2), b.weight(8), strides=[2, 2])
    x = b.op("Relu", b.conv(b.op("Concat", high, first, axis=1), 16, 8, 3))
    return b.model({"input": [1, 3, 16, 16]}, {b.op("Sigmoid", b.conv(x, 8, 1, 1)): [1, 1, 16, 16]})


def pooled() -> bytes:
    """A convolution between padded poolings, with as many channels as partial sums allow."""
    b = Builder()
    x = b.op("MaxPool", b.conv("input", 3, 8, 3), kernel_shape=[3, 3], pads=[1] * 4)
    x = b.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    return b.model({"input": [1, 3, 8, 8]}, {b.conv(x, 8, 4, 1): [1, 4, 4, 4]})


def attention() -> bytes:
    """Scaled dot-product attention with a layer norm."""
    b = Builder()
    query, key, value = (b.op("MatMul", "input", b.weight(16, 16)) for _ in range(3))
    scores = b.op("MatMul", query, b.op("Transpose", key, perm=[0, 2, 1]))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Mul", scores, b.constant(np.float32(0.25)))), value)
    x = b.op("LayerNormalization", b.op("Add", mixed, "input"), b.weight(16), b.weight(16), axis=-1)
    return b.model({"input": [2, 8, 16]}, {x: [2, 8, 16]})


def masked_attention(batch: Extent = 1, tokens: Extent = 8) -> bytes:
    """An attention layer that ignores the tokens outside the input `mask`."""
    b = Builder()
    query, key, value = (b.op("MatMul", "input", b.weight(16, 16)) for _ in range(3))
    scores = b.op("MatMul", query, b.op("Transpose", key, perm=[0, 2, 1]))
    hidden = b.op("Mul", b.op("Sub", "mask", b.constant(np.float32(1))), b.constant(np.float32(1e4)))
    hidden = b.op("Unsqueeze", hidden, b.constant(np.array([1])))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Add", scores, hidden)), value)
    x = b.op("LayerNormalization", b.op("Add", mixed, "input"), b.weight(16), b.weight(16), axis=-1)
    x = b.op("Relu", b.op("MatMul", x, b.weight(16, 32)))
    return b.model({"input": [batch, tokens, 16], "mask": [batch, tokens]}, {x: [batch, tokens, 32]})


def fully_convolutional(size: Extent = 8) -> bytes:
    """Two convolutions that halve an image of any size, and a map of the image's size."""
    b = Builder()
    first = b.op("Relu", b.conv("input", 3, 8, 3))
    second = b.op("Relu", b.op("Conv", first, b.weight(4, 8, 2, 2), b.weight(4), strides=[2, 2]))
    return b.model({"input": [1, 3, size, size]}, {first: [1, 8, size, size], second: [1, 4, "h", "w"]})


def shared_convolution() -> bytes:
    """A convolution that a batch norm and another reader share: its weights must stay as they are."""
    b = Builder()
    conv = b.conv("input", 3, 8, 3)
    x = b.op("Add", b.batch_norm(conv, 8), conv)
    return b.model({"input": [1, 3, 6, 6]}, {x: [1, 8, 6, 6]})


def products(rows: Extent = 1, extent: int = 128, layers: int = 1) -> bytes:
    """Products one after the other; `extent` decides how large their weights are."""
    b, name = Builder(), "input"
    for _ in range(layers):
        name = b.op("Tanh", b.op("MatMul", name, b.weight(extent, extent)))
    return b.model({"input": [rows, extent]}, {name: [rows, extent]})


def two_outputs() -> bytes:
    """Two inputs and two outputs. One output is an intermediate value of the other."""
    b = Builder()
    total = b.op("Add", "left", "right")
    return b.model({"left": [4, 5], "right": [4, 5]}, {total: [4, 5], b.op("Relu", total): [4, 5]})


def scaled_convolution() -> bytes:
    """Bias, multiplication, division and subtraction per channel behind a convolution, in 1-D and 3-D."""
    b = Builder()
    x = b.op("Conv", "input", b.weight(4, 3, 3), b.weight(4), pads=[1, 1])
    x = b.op("Div", b.op("Mul", x, b.weight(1, 4, 1)), b.weight(4, 1, low=1.0, high=2.0))
    x = b.op("Sub", x, b.constant(np.float32(0.25)))
    y = b.op("Conv", b.op("Unsqueeze", x, b.constant(np.array([3, 4]))), b.weight(2, 4, 1, 1, 1))
    return b.model({"input": [1, 3, 9]}, {b.batch_norm(y, 2): [1, 2, 9, 1, 1]})


MODELS = {
    make.__name__: make
    for make in (
        residual,
        depthwise,
        transposed,
        decoder,
        pooled,
        attention,
        shared_convolution,
        two_outputs,
        scaled_convolution,
    )
}


def rectifier(*external: str) -> bytes:
    """Return a model whose weights are in other files, from byte 12 to 512."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    for name in external:
        tensor = graph.initializer.add(
            name=name, data_location=TensorProto.EXTERNAL, data_type=TensorProto.FLOAT, dims=[5, 25]
        )
        tensor.external_data.add(key="location", value=name)
        tensor.external_data.add(key="offset", value="12")
    made: onnx.ModelProto = helper.make_model(graph)
    return made.SerializeToString()


def leaky(*inputs: str, version: int = 17, **given: Any) -> onnx.ModelProto:
    """Return a model that calls its own function, whose attribute `alpha` is 0.3 by default."""
    body = helper.make_node("LeakyRelu", ["x"], ["y"])
    reference = body.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    assert reference.ref_attr_name
    function = helper.make_function(
        *("own", "Leak", ["x"], ["y"], [body], [helper.make_opsetid("", version)]),
        attribute_protos=[helper.make_attribute("alpha", 0.3)],
    )
    calls = [helper.make_node("Leak", [name], [f"{name}.leaky"], domain="own", **given) for name in inputs]
    graph = helper.make_graph(
        calls,
        "leaky",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in inputs],
        [helper.make_tensor_value_info(f"{name}.leaky", TensorProto.FLOAT, [2, 3]) for name in inputs],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)


def in_bits(
    bits: int, depth: int, columns: int, block: int, rows: int, zeros: str = "", level: int = 4
) -> onnx.ModelProto:
    """A MatMulNBits of an accuracy level, with zero points that are left out, packed or floats."""
    random = np.random.default_rng(0)
    blocks = -(-depth // block)
    constants: dict[str, ArrayLike] = {
        "codes": random.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8),
        "scales": random.uniform(0.1, 1.1, (columns, blocks)).astype(np.float32),
    }
    if zeros == "packed":
        constants["zeros"] = random.integers(0, 256, (columns, -(-blocks * bits // 8)), np.uint8)
    elif zeros == "floats":
        constants["zeros"] = random.uniform(-0.5, 0.5, (columns, blocks)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        ["y"],
        domain="com.microsoft",
        bits=bits,
        K=depth,
        N=columns,
        block_size=block,
        accuracy_level=level,
    )
    data, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, extent))
        for name, extent in (("x", depth), ("y", columns))
    )
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "product", [data], [result], weights)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)
