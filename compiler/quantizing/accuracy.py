"""Compare a quantized model with its float model, layer by layer, in ONNX Runtime.

A layer's error has two causes: its own rounding, and the errors of the layers before it. To separate them,
the quantized model runs twice on each sample. In the second run, each layer reads the float model's values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from compiler.importing.onnx_file import read_file
from compiler.importing.spec import ModelError
from compiler.quantizing.preparation import float_values
from compiler.verifying.reference import Reference
from compiler.verifying.splitting import given_values, split_at
from core.quantization import decibels

Array = NDArray[Any]
QUANTIZE, DEQUANTIZE, PACKED = "QuantizeLinear", "DequantizeLinear", "MatMulNBits"
# ONNX Runtime's tools add this suffix to the name of a model output's value before it is quantized.
_BEFORE = "_QuantizeLinear_Input"


@dataclass(frozen=True)
class Layer:
    """A layer of a quantized model. `node` is the corresponding node of the float model.

    `value` is the layer's output, which other layers read. `wanted` is the same value in the float model, and
    `nodes` are the names of the nodes that compute it there. `rounding` is None if the value stays float.
    """

    node: onnx.NodeProto
    nodes: tuple[str, ...]
    value: str
    wanted: str
    rounding: Rounding | None
    reads_rounded: bool

    @property
    def is_quantized(self) -> bool:
        return self.rounding is not None or self.reads_rounded


@dataclass(frozen=True)
class Rounding:
    """The scale, zero point and limits of a value that is rounded to 8 bits."""

    scale: float
    zero: int
    low: int
    high: int

    def apply(self, values: Array) -> Array:
        codes = np.clip(np.rint(values / self.scale) + self.zero, self.low, self.high)
        return ((codes - self.zero) * self.scale).astype(values.dtype)


@dataclass
class Power:
    """Sums of squares of a value in the float model, and of its error in the quantized model."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, wanted: Array, found: Array) -> None:
        """Add a sample. Elements that aren't finite in the float model, such as in masks, are ignored."""
        if wanted.shape != found.shape:
            self.noise = math.inf
            return
        numbers = np.isfinite(wanted)
        a, b = wanted[numbers].astype(np.float64), found[numbers].astype(np.float64)
        self.signal += float(np.sum(a * a))
        error = float(np.sum((a - b) ** 2)) if np.isfinite(b).all() else math.inf
        self.noise += error

    @property
    def db(self) -> float | None:
        return decibels(self.signal, self.noise)


@dataclass(frozen=True)
class Accuracy:
    """The errors of layers, by index, and of outputs, by name.

    `core.quantization.LayerAccuracy` defines `own` and `total`.
    """

    layers: Sequence[Layer]
    own: Mapping[int, Power] = field(default_factory=lambda: defaultdict(Power))
    total: Mapping[int, Power] = field(default_factory=lambda: defaultdict(Power))
    outputs: Mapping[str, Power] = field(default_factory=lambda: defaultdict(Power))


class FloatModel:
    """The float model, and the values that its layers compute."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.nodes = {node.name: node for node in proto.graph.node}
        self.values = float_values(proto)
        self.outputs = [value.name for value in proto.graph.output]
        self._reference = Reference(proto, list(dict.fromkeys([*self.values, *self.outputs])))

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the values of all layers and outputs. Raises ModelError if ONNX Runtime can't run it."""
        return _compute(self._reference, inputs)

    def unbounded(self, samples: Iterable[Mapping[str, Array]]) -> set[str]:
        """Return the names of nodes that read or compute infinities or NaN, which have no scale."""
        values = {
            name
            for inputs in samples
            for name, array in self.compute(inputs).items()
            if array.dtype.kind == "f" and not np.isfinite(array).all()
        }
        return {node.name for node in self.nodes.values() if values.intersection([*node.input, *node.output])}

    def layers(self, quantized: onnx.ModelProto) -> list[Layer]:
        """Return the layers of this model's quantized form that have float outputs."""
        nodes = quantized.graph.node
        constants = {tensor.name: tensor for tensor in quantized.graph.initializer}
        rounders = {node.input[0]: node for node in nodes if node.op_type == QUANTIZE}
        restored = {node.input[0]: node.output[0] for node in nodes if node.op_type == DEQUANTIZE}
        # A quantized weight has only a DequantizeLinear. A packed weight is read by a MatMulNBits. If a later
        # node adds the bias, the product's output has no counterpart in the float model.
        rounded = {*restored.values()}
        products = {node.output[0] for node in nodes if node.op_type == PACKED}
        rounded |= products - self.values.keys()
        found = []
        for node in nodes:
            if node.op_type in (QUANTIZE, DEQUANTIZE):
                continue
            for output in filter(None, node.output):
                name = output.removesuffix(_BEFORE)
                maker = self.values.get(name)
                if maker is None:
                    continue
                rounder = rounders.get(output)
                value, rounding = output, None
                if rounder is not None and rounder.output[0] in restored:
                    value, rounding = restored[rounder.output[0]], _rounding(rounder, constants)
                own = node.name if node.name in self.nodes else maker
                reads = bool(rounded.intersection(node.input)) or node.op_type == PACKED
                names = tuple({own, maker})
                found.append(Layer(self.nodes[own], names, value, name, rounding, reads))
        return found


def measure(
    model: FloatModel, quantized: onnx.ModelProto, samples: Sequence[Mapping[str, Array]]
) -> Accuracy:
    """Return the errors of a model's quantized form on samples of equal shapes. Raises ModelError."""
    layers = model.layers(quantized)
    accuracy = Accuracy(layers)
    names = list(dict.fromkeys([*(layer.value for layer in layers), *model.outputs]))
    whole = Reference(quantized, names)
    alone: Reference | None = None
    for inputs in samples:
        wanted = model.compute(inputs)
        # The inputs of layers in the second run: float values, rounded if the quantized model rounds them.
        read = {
            layer.value: wanted[layer.wanted]
            if layer.rounding is None
            else layer.rounding.apply(wanted[layer.wanted])
            for layer in layers
        }
        if alone is None:
            shapes = {name: array.shape for name, array in inputs.items()}
            file = read_file(quantized.SerializeToString(), shapes)
            alone = Reference(split_at(file, read, read).proto, [layer.value for layer in layers])
        for powers, found in (
            (accuracy.total, _compute(whole, inputs)),
            (accuracy.own, _compute(alone, {**inputs, **given_values(read, read)})),
        ):
            for place, layer in enumerate(layers):
                powers[place].add(wanted[layer.wanted], found[layer.value])
            if powers is accuracy.total:
                for name in model.outputs:
                    accuracy.outputs[name].add(wanted[name], found[name])
    return accuracy


def _compute(reference: Reference, inputs: Mapping[str, Array]) -> dict[str, Array]:
    found = reference.compute(inputs)
    if reference.doubt:
        raise ModelError(
            f"ONNX Runtime can't run the model on the samples ({reference.doubt}): give valid inputs"
        )
    return found


def _rounding(rounder: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Rounding | None:
    """Return how a QuantizeLinear rounds; None if each channel has its own scale."""
    scale, zero = (numpy_helper.to_array(constants[name]) for name in rounder.input[1:3])
    if scale.size != 1:
        return None
    limits = np.iinfo(zero.dtype)
    return Rounding(float(scale.reshape(())), int(zero.reshape(())), int(limits.min), int(limits.max))
