"""Writes ONNX graphs the way PyTorch exports them, with seeded random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # what opset 17 came with: every runtime of the last years reads it


@dataclass(frozen=True)
class Tensor:
    """A value in the graph: its name, its channels, and whether it is already clipped at zero."""

    name: str
    channels: int
    rectified: bool = False


@dataclass
class Graph:
    """Collects nodes and weights. Weights are He-initialised, so that activations keep their scale."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def conv(
        self,
        x: Tensor,
        name: str,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        gain: float | None = None,
    ) -> Tensor:
        """A convolution with padding `kernel // 2` and no bias, then its batch normalization.

        `gain` is the output's variance over the input's second moment; by default what keeps the
        scale: 2 where a rectifier halved it, else 1.
        """
        fan_in = x.channels // groups * kernel * kernel
        gain = gain if gain is not None else (2.0 if x.rectified else 1.0)
        weight = self._normal((out, x.channels // groups, kernel, kernel), math.sqrt(gain / fan_in))
        inputs = [x.name, self._weight(f"{name}.weight", weight)]
        y = self._node(
            "Conv",
            name,
            inputs,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4,
            strides=[stride, stride],
        )
        return Tensor(self._batch_norm(y, f"{name}.bn", out), out)

    def relu(self, x: Tensor, name: str) -> Tensor:
        return Tensor(self._node("Relu", name, [x.name]), x.channels, rectified=True)

    def relu6(self, x: Tensor, name: str) -> Tensor:
        bounds = [
            self._weight(f"{name}.{end}", np.array(v, np.float32)) for end, v in (("min", 0), ("max", 6))
        ]
        return Tensor(self._node("Clip", name, [x.name, *bounds]), x.channels, rectified=True)

    def add(self, a: Tensor, b: Tensor, name: str) -> Tensor:
        return Tensor(self._node("Add", name, [a.name, b.name]), a.channels)

    def max_pool(self, x: Tensor, name: str) -> Tensor:
        y = self._node("MaxPool", name, [x.name], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
        return Tensor(y, x.channels, x.rectified)

    def classifier(self, x: Tensor, name: str, classes: int) -> None:
        """Global average pooling and one fully connected layer, which writes the graph's output."""
        pooled = self._node("GlobalAveragePool", f"{name}.pool", [x.name])
        flat = self._node("Flatten", f"{name}.flatten", [pooled], axis=1)
        weight = self._weight(f"{name}.weight", self._normal((classes, x.channels), x.channels**-0.5))
        bias = self._weight(f"{name}.bias", self._normal((classes,), 0.1))
        node = helper.make_node(
            "Gemm", [flat, weight, bias], ["output"], name=name, alpha=1.0, beta=1.0, transB=1
        )
        self.nodes.append(node)

    def finish(self, name: str, batch: int | str, size: int, classes: int) -> onnx.ModelProto:
        """The checked model. A `batch` that is a word becomes a dynamic dimension of that name."""
        image = helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, size, size])
        logits = helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, classes])
        graph = helper.make_graph(self.nodes, name, [image], [logits], self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tunefarm"
        )
        onnx.checker.check_model(model)
        return model

    def _batch_norm(self, x: str, name: str, channels: int) -> str:
        statistics = {
            "weight": self.rng.uniform(0.8, 1.2, channels),
            "bias": self.rng.normal(0.0, 0.1, channels),
            "running_mean": self.rng.normal(0.0, 0.1, channels),
            "running_var": self.rng.uniform(0.8, 1.2, channels),
        }
        inputs = [
            self._weight(f"{name}.{key}", value.astype(np.float32)) for key, value in statistics.items()
        ]
        return self._node("BatchNormalization", name, [x, *inputs], epsilon=1e-5, momentum=0.9)

    def _normal(self, shape: tuple[int, ...], deviation: float) -> npt.NDArray[np.float32]:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def _weight(self, name: str, value: npt.NDArray[np.float32]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def _node(self, op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{name}.out"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output
