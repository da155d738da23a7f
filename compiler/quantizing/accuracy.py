"""Compare a quantized model with the model of floats, layer by layer, in ONNX Runtime.

A layer loses by its own rounding and by what the layers before it lost. So the quantized model runs twice on
each sample: as it is, and with every layer's inputs as the float model computes them.
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
from compiler.quantizing.graph import float_values
from compiler.verifying.apart import apart, given
from compiler.verifying.reference import Reference
from core.quantization import decibels

Array = NDArray[Any]
QUANTIZE, DEQUANTIZE, PACKED = "QuantizeLinear", "DequantizeLinear", "MatMulNBits"
# What ONNX Runtime's tools append to the name of a value that is quantized behind an output of the model.
_BEFORE = "_QuantizeLinear_Input"


@dataclass(frozen=True)
class Layer:
    """A layer of a quantized model: the `node` of the float model that it stands for.

    The layer computes `value`, which is what other layers read; the float model computes `wanted` instead. In
    the float model, `nodes` computed it. `rounding` is how the value is rounded, None for floats.
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
    """The scale and the zero point of a value in bytes."""

    scale: float
    zero: int
    low: int
    high: int

    def apply(self, values: Array) -> Array:
        codes = np.clip(np.rint(values / self.scale) + self.zero, self.low, self.high)
        return ((codes - self.zero) * self.scale).astype(values.dtype)


@dataclass
class Power:
    """Sums of squares: of a value as floats compute it, and of its error."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, wanted: Array, found: Array) -> None:
        """Add a sample. Where floats compute an infinity, such as in masks, nothing is compared."""
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
    """The errors of layers, by their place, and of outputs, by name. See `core.quantization`."""

    layers: Sequence[Layer]
    own: Mapping[int, Power] = field(default_factory=lambda: defaultdict(Power))
    total: Mapping[int, Power] = field(default_factory=lambda: defaultdict(Power))
    outputs: Mapping[str, Power] = field(default_factory=lambda: defaultdict(Power))


class FloatModel:
    """The model of floats, with the values of its layers."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.nodes = {node.name: node for node in proto.graph.node}
        self.values = float_values(proto)
        self.outputs = [value.name for value in proto.graph.output]
        self._reference = Reference(proto, list(dict.fromkeys([*self.values, *self.outputs])))

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the values of all layers, and the outputs. Raises ModelError where ONNX Runtime can't."""
        return _compute(self._reference, inputs)

    def unbounded(self, samples: Iterable[Mapping[str, Array]]) -> set[str]:
        """Return the names of nodes that compute or read an infinity or NaN: no scale fits those."""
        values = {
            name
            for inputs in samples
            for name, array in self.compute(inputs).items()
            if array.dtype.kind == "f" and not np.isfinite(array).all()
        }
        return {node.name for node in self.nodes.values() if values.intersection([*node.input, *node.output])}

    def layers(self, quantized: onnx.ModelProto) -> list[Layer]:
        """Return the layers of a quantized form of this model that compute floats."""
        nodes = quantized.graph.node
        constants = {tensor.name: tensor for tensor in quantized.graph.initializer}
        rounders = {node.input[0]: node for node in nodes if node.op_type == QUANTIZE}
        restored = {node.input[0]: node.output[0] for node in nodes if node.op_type == DEQUANTIZE}
        # Weights in bytes have a DequantizeLinear alone. Packed ones are read by a product, perhaps without a
        # counterpart in the float model, because its bias is added later.
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
    """Return how much a quantized form of a model loses on samples of equal shapes. Raises ModelError."""
    layers = model.layers(quantized)
    accuracy = Accuracy(layers)
    names = list(dict.fromkeys([*(layer.value for layer in layers), *model.outputs]))
    whole = Reference(quantized, names)
    alone: Reference | None = None
    for inputs in samples:
        wanted = model.compute(inputs)
        # What a layer's successors read where only they lose: the float value, in bytes where it is in bytes.
        read = {
            layer.value: wanted[layer.wanted]
            if layer.rounding is None
            else layer.rounding.apply(wanted[layer.wanted])
            for layer in layers
        }
        if alone is None:
            shapes = {name: array.shape for name, array in inputs.items()}
            file = read_file(quantized.SerializeToString(), shapes)
            alone = Reference(apart(file, read, read).proto, [layer.value for layer in layers])
        for powers, found in (
            (accuracy.total, _compute(whole, inputs)),
            (accuracy.own, _compute(alone, {**inputs, **given(read, read)})),
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
        raise ModelError(f"ONNX Runtime can't run the model on the samples: {reference.doubt}")
    return found


def _rounding(rounder: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Rounding | None:
    """Return how a QuantizeLinear rounds; None where it has a scale for each channel."""
    scale, zero = (numpy_helper.to_array(constants[name]) for name in rounder.input[1:3])
    if scale.size != 1:
        return None
    limits = np.iinfo(zero.dtype)
    return Rounding(float(scale.reshape(())), int(zero.reshape(())), int(limits.min), int(limits.max))
