"""Compare a quantized model layer by layer.

A wrong zero point changes a network's outputs less than rounding errors do that accumulate through its
layers. So each layer gets the reference's bytes as inputs, and its output bytes are compared. Then rounding
errors don't accumulate, and hardly any byte may differ.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.onnx_file import OnnxFile, node_name, rounds_to_bytes
from compiler.target import detect_device
from compiler.verifying.reference import Reference
from compiler.verifying.splitting import given_values, split_at

Array = NDArray[Any]
# The operator that rounds its input; other quantizing operators round a computed value.
QUANTIZE = "QuantizeLinear"
MULTIPLY = ("QLinearConv", "QLinearMatMul", "QGemm")
# Without one of these instruction sets, ONNX Runtime on x86 sums pairs of products of bytes in 16 bits, which
# overflow.
EXACT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni"})
INTEGER_PRODUCTS = (
    *MULTIPLY,
    "ConvInteger",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
)
# A value this close to the middle between two steps may be rounded to either.
NEAR_MIDDLE = 0.02
# The fraction of a tensor's bytes that may be off by a step without a known reason.
MAX_SHARE = 0.01
# Sums and means of bytes are often halfway between two steps.
MAX_SHARE_OF_MIDDLES = 0.5
# Root mean square of the error of floats, relative to the root mean square of the values.
MAX_ERROR = 1e-3


@dataclass(frozen=True)
class Layers:
    """The nodes of a model that quantize values that depend on its inputs. `results` names the compared
    values: outputs of `nodes`, and the model's outputs. If the rounded value and its step are known,
    `rounded` has its name and `scales` the step, by the result.
    """

    file: OnnxFile
    nodes: tuple[onnx.NodeProto, ...]
    results: tuple[str, ...]
    rounded: Mapping[str, str]
    scales: Mapping[str, float]

    @classmethod
    def of(cls, file: OnnxFile) -> Layers | None:
        """Return None for a model that isn't quantized, that computes in narrow floats, or whose products
        ONNX Runtime doesn't compute exactly on this machine."""
        graph = file.proto.graph
        kinds = {node.op_type for node in graph.node}
        if {"float16", "bfloat16"} & file.types:
            return None
        is_x86 = platform.machine() == "x86_64"
        if is_x86 and kinds & {*INTEGER_PRODUCTS} and not EXACT_PRODUCTS & {*detect_device().features}:
            return None
        varying = {spec.name for spec in file.inputs}
        nodes = []
        for node in graph.node:
            # Values that subgraphs read from the outer graph aren't among a node's inputs.
            if varying.intersection(node.input) or any(one.HasField("g") for one in node.attribute):
                varying.update(node.output)
                is_product = rounds_to_bytes(node) or (node.op_type == "QGemm" and len(node.input) > 7)
                if is_product or node.op_type.startswith("QLinear") or QUANTIZE in node.op_type:
                    nodes.append(node)
        if not nodes:
            return None
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        tensors |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
        steps = {
            node.output[0]: onnx.numpy_helper.to_array(tensors[node.input[1]])
            for node in nodes
            if node.op_type == QUANTIZE and node.input[1] in tensors
        }
        rounded = [node for node in nodes if node.output[0] in steps and steps[node.output[0]].size == 1]
        results = [name for node in nodes for name in node.output if name]
        results += [name for name in file.output_names if name not in results]
        return cls(
            file,
            tuple(nodes),
            tuple(results),
            {node.output[0]: node.input[0] for node in rounded},
            {node.output[0]: float(steps[node.output[0]].reshape(())) for node in rounded},
        )

    def reference(self) -> Reference:
        """Return a model that computes the `results` and the values that were rounded to them."""
        given = {spec.name for spec in self.file.inputs}
        names = [*self.results, *(name for name in self.rounded.values() if name not in given)]
        return Reference(self.file.proto, list(dict.fromkeys(names)))

    def split(self, wanted: Mapping[str, Array]) -> OnnxFile:
        """Return the model with its quantized values as additional inputs, which all other nodes read."""
        return split_at(self.file, self._names, wanted)

    def given(self, wanted: Mapping[str, Array]) -> dict[str, Array]:
        """Return the additional inputs of the model that `split` returns."""
        return given_values(self._names, wanted)

    @property
    def _names(self) -> list[str]:
        return [name for node in self.nodes for name in node.output if name]

    def differences(
        self, wanted: Mapping[str, Array], found: Mapping[str, Array]
    ) -> Iterator[tuple[str, str, str]]:
        """Yield (node, value's name, difference) for each node with a wrong result, in order.

        `wanted` includes the model's inputs.
        """
        for node in self.nodes:
            for name in filter(None, node.output):
                rounded = self.rounded.get(name)
                middles = None
                if rounded is not None:
                    steps = wanted[rounded].astype(np.float64) / self.scales[name]
                    with np.errstate(invalid="ignore"):  # masks hold infinities
                        middles = np.abs(steps - np.floor(steps) - 0.5) < NEAR_MIDDLE
                share = MAX_SHARE if middles is not None or node.op_type in MULTIPLY else MAX_SHARE_OF_MIDDLES
                if wrong := compare(wanted[name], found[name], middles, share):
                    yield f"operator {node.op_type} of {node_name(node)}", name, wrong
        quantized = {name for node in self.nodes for name in node.output}
        for name in self.file.output_names:
            if name not in quantized and (wrong := compare(wanted[name], found[name], None, MAX_SHARE)):
                yield "what follows the last quantized values", name, wrong


def compare(
    wanted: Array, found: Array, middles: NDArray[np.bool_] | None, max_share: float = MAX_SHARE
) -> str:
    """Describe how the values of one layer differ; "" if they agree. Integers may be off by a step where
    `middles` says that the value was between two steps, and so may a fraction of the others."""
    if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
        return f"it is {found.dtype} {found.shape} instead of {wanted.dtype} {wanted.shape}"
    if wanted.size == 0:
        return ""
    if "int" in str(wanted.dtype):
        steps = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
        if steps.max() > 1:
            return f"{np.count_nonzero(steps > 1)} of {steps.size} values are off by more than a step"
        off = np.count_nonzero(steps if middles is None else steps * ~middles)
        return f"{off} of {steps.size} values are off by a step" if off > max_share * steps.size else ""
    numbers = np.isfinite(wanted) & np.isfinite(found)
    if not numbers.any():
        return ""
    a, b = found[numbers].astype(np.float64), wanted[numbers].astype(np.float64)
    error, size = np.sqrt(np.mean((a - b) ** 2)), np.sqrt(np.mean(b**2))
    return f"its values are off by {error / size:.2g} of their size" if error > MAX_ERROR * size else ""
