"""Write ONNX graphs as PyTorch exports them, with seeded random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the version of opset 17, which all runtimes of recent years read

# An extent in a shape. A string names a dynamic dimension.
Extent = int | str

# The size or stride of a convolution's window: one number for a square, or one for each axis.
Window = int | tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A value in the graph: its name and its number of channels or features. `moment` is its mean square
    relative to the variance before its activation. The weights of the next layer compensate for it.
    """

    name: str
    channels: int
    moment: float = 1.0


# Mean squares of a standard normal variable after these activations.
RECTIFIED = 0.5
SILU = 0.356
GELU = 0.425


@dataclass
class Graph:
    """The nodes and weights of a model. Weights are He-initialized, so activations keep their scale."""

    rng: np.random.Generator
    batch: Extent = 1
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, *shape: Extent, element_type: int = TensorProto.FLOAT) -> str:
        """Add a model input of shape (batch, *shape)."""
        self.inputs.append(helper.make_tensor_value_info(name, element_type, [self.batch, *shape]))
        return name

    def image(self, size: Extent) -> Tensor:
        return Tensor(self.input("input", 3, size, size), 3)

    def output(self, name: str, *shape: Extent) -> str:
        """Declare a model output of shape (batch, *shape). A node has to write it."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [self.batch, *shape]))
        return name

    def conv(
        self,
        x: Tensor,
        name: str,
        out: int,
        kernel: Window,
        stride: Window = 1,
        groups: int = 1,
        gain: float | None = None,
        pad: int | None = None,
        bias: bool = False,
    ) -> Tensor:
        """Add a convolution, by default with padding `kernel // 2`.

        `gain` is the output's variance over the input's second moment; by default the scale stays the same.
        """
        kernel = _extents(kernel)
        stride = _extents(stride, len(kernel))
        fan_in = x.channels // groups * math.prod(kernel)
        gain = 1.0 / x.moment if gain is None else gain
        weight = self.normal((out, x.channels // groups, *kernel), math.sqrt(gain / fan_in))
        inputs = [x.name, self.weight(f"{name}.weight", weight)]
        if bias:
            inputs.append(self.weight(f"{name}.bias", self.normal((out,), 0.1)))
        pads = [extent // 2 if pad is None else pad for extent in kernel]
        y = self.node(
            "Conv",
            name,
            inputs,
            dilations=[1] * len(kernel),
            group=groups,
            kernel_shape=kernel,
            pads=pads * 2,
            strides=stride,
        )
        return Tensor(y, out)

    def conv_transposed(
        self, x: Tensor, name: str, out: int, kernel: int, stride: int, pad: int, gain: float | None = None
    ) -> Tensor:
        """Add a transposed convolution without bias, which enlarges the image by `stride`."""
        fan_in = x.channels * kernel * kernel // (stride * stride)
        gain = 1.0 / x.moment if gain is None else gain
        weight = self.normal((x.channels, out, kernel, kernel), math.sqrt(gain / fan_in))
        y = self.node(
            "ConvTranspose",
            name,
            [x.name, self.weight(f"{name}.weight", weight)],
            dilations=[1, 1],
            group=1,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )
        return Tensor(y, out)

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        statistics = {
            "weight": self.rng.uniform(0.8, 1.2, x.channels),
            "bias": self.rng.normal(0.0, 0.1, x.channels),
            "running_mean": self.rng.normal(0.0, 0.1, x.channels),
            "running_var": self.rng.uniform(0.8, 1.2, x.channels),
        }
        inputs = [self.weight(f"{name}.{key}", value.astype(np.float32)) for key, value in statistics.items()]
        y = self.node("BatchNormalization", name, [x.name, *inputs], epsilon=1e-5, momentum=0.9)
        return Tensor(y, x.channels)

    def conv_bn(
        self,
        x: Tensor,
        name: str,
        out: int,
        kernel: Window,
        stride: Window = 1,
        groups: int = 1,
        gain: float | None = None,
    ) -> Tensor:
        """Add a convolution without bias and its batch normalization."""
        return self.batch_norm(self.conv(x, name, out, kernel, stride, groups, gain), f"{name}.bn")

    def relu(self, x: Tensor, name: str) -> Tensor:
        return Tensor(self.node("Relu", name, [x.name]), x.channels, RECTIFIED)

    def relu6(self, x: Tensor, name: str) -> Tensor:
        bounds = [
            self.weight(f"{name}.{end}", np.array(v, np.float32)) for end, v in (("min", 0), ("max", 6))
        ]
        return Tensor(self.node("Clip", name, [x.name, *bounds]), x.channels, RECTIFIED)

    def silu(self, x: Tensor, name: str) -> Tensor:
        gate = self.node("Sigmoid", f"{name}.sigmoid", [x.name])
        return Tensor(self.node("Mul", name, [x.name, gate]), x.channels, SILU)

    def gelu(self, x: Tensor, name: str) -> Tensor:
        """Add x/2 (1 + erf(x / sqrt 2)) as the five operators that exporters write."""
        scaled = self.node("Div", f"{name}.div", [x.name, self.scalar(f"{name}.sqrt2", math.sqrt(2.0))])
        erf = self.node("Erf", f"{name}.erf", [scaled])
        gate = self.node("Add", f"{name}.add", [erf, self.scalar(f"{name}.one", 1.0)])
        gated = self.node("Mul", f"{name}.mul", [x.name, gate])
        y = self.node("Mul", name, [gated, self.scalar(f"{name}.half", 0.5)])
        return Tensor(y, x.channels, GELU)

    def gelu_tanh(self, x: Tensor, name: str) -> Tensor:
        """Add x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as GPT-2 computes it."""
        cube = self.node("Pow", f"{name}.pow", [x.name, self.scalar(f"{name}.three", 3.0)])
        small = self.node("Mul", f"{name}.small", [cube, self.scalar(f"{name}.factor", 0.044715)])
        inner = self.node("Add", f"{name}.inner", [x.name, small])
        root = self.scalar(f"{name}.root", math.sqrt(2.0 / math.pi))
        tanh = self.node("Tanh", f"{name}.tanh", [self.node("Mul", f"{name}.scaled", [inner, root])])
        gate = self.node("Add", f"{name}.add", [tanh, self.scalar(f"{name}.one", 1.0)])
        half = self.node("Mul", f"{name}.mul", [x.name, self.scalar(f"{name}.half", 0.5)])
        return Tensor(self.node("Mul", name, [half, gate]), x.channels, GELU)

    def add(self, a: Tensor, b: Tensor, name: str) -> Tensor:
        return Tensor(self.node("Add", name, [a.name, b.name]), a.channels)

    def max_pool(self, x: Tensor, name: str, pad: int = 1, ceil: bool = False) -> Tensor:
        """Add a maximum over 3x3 pixels with stride 2. With `ceil`, the last window may cross the edge."""
        y = self.node(
            "MaxPool",
            name,
            [x.name],
            kernel_shape=[3, 3],
            pads=[pad] * 4,
            strides=[2, 2],
            ceil_mode=int(ceil),
        )
        return Tensor(y, x.channels, x.moment)

    def global_average_pool(self, x: Tensor, name: str) -> Tensor:
        """Add the mean over all pixels. The result has one pixel."""
        return Tensor(self.node("GlobalAveragePool", name, [x.name]), x.channels)

    def flatten(self, x: Tensor, name: str, output: str | None = None) -> Tensor:
        return Tensor(self.node("Flatten", name, [x.name], output, axis=1), x.channels)

    def gemm(self, x: Tensor, name: str, out: int, output: str | None = None) -> Tensor:
        """Add a fully connected layer to a matrix of (batch, channels)."""
        weight = self.weight(f"{name}.weight", self.normal((out, x.channels), x.channels**-0.5))
        bias = self.weight(f"{name}.bias", self.normal((out,), 0.1))
        y = self.node("Gemm", name, [x.name, weight, bias], output, alpha=1.0, beta=1.0, transB=1)
        return Tensor(y, out)

    def linear(self, x: Tensor, name: str, out: int, gain: float | None = None) -> Tensor:
        """Add a fully connected layer to the last of several dimensions; its weight is stored transposed."""
        deviation = math.sqrt((1.0 / x.moment if gain is None else gain) / x.channels)
        weight = self.weight(f"{name}.weight", self.normal((x.channels, out), deviation))
        product = self.node("MatMul", f"{name}.matmul", [x.name, weight])
        bias = self.weight(f"{name}.bias", self.normal((out,), 0.02))
        return Tensor(self.node("Add", name, [bias, product]), out)

    def layer_norm(self, x: Tensor, name: str, epsilon: float, output: str | None = None) -> Tensor:
        """Add a normalization over the features, the last dimension."""
        scale = self.weight(f"{name}.weight", self.rng.uniform(0.8, 1.2, x.channels).astype(np.float32))
        bias = self.weight(f"{name}.bias", self.normal((x.channels,), 0.1))
        y = self.node("LayerNormalization", name, [x.name, scale, bias], output, axis=-1, epsilon=epsilon)
        return Tensor(y, x.channels)

    def reshape(self, x: str, name: str, *shape: int) -> str:
        """Reshape to (batch, *shape)."""
        batch = self.batch if isinstance(self.batch, int) else -1
        return self.node("Reshape", name, [x, self.integers(f"{name}.shape", [batch, *shape])])

    def transpose(self, x: str, name: str, *order: int) -> str:
        return self.node("Transpose", name, [x], perm=list(order))

    def classifier(self, x: Tensor, name: str, classes: int) -> None:
        """Add global average pooling and a fully connected layer, which writes the graph's output."""
        flat = self.flatten(self.global_average_pool(x, f"{name}.pool"), f"{name}.flatten")
        self.gemm(flat, name, classes, self.output("output", classes))

    def node(
        self, op: str, name: str, inputs: Sequence[str], output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output, and return the output's name."""
        output = output or f"{name}.out"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=name, **attributes))
        return output

    def weight(self, name: str, value: npt.NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.weight(name, np.array(value, np.float32))

    def integers(self, name: str, values: int | Sequence[int] | npt.NDArray[Any]) -> str:
        """Add an int64 constant: indices, axes or a shape."""
        return self.weight(name, np.array(values, np.int64))

    def normal(self, shape: tuple[int, ...], deviation: float) -> npt.NDArray[np.float32]:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def build(self, name: str) -> onnx.ModelProto:
        """Return the model after ONNX's checker accepted it."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tunefarm"
        )
        onnx.checker.check_model(model)
        return model


def _extents(window: Window, axes: int = 2) -> tuple[int, ...]:
    return (window,) * axes if isinstance(window, int) else window
