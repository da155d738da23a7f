"""ONNX's own node tests. As in exported models, inputs such as shapes and axes are constants."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests

Array = NDArray[Any]

# The positions of inputs that are parameters, not data, by operator.
CONSTANT_INPUTS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "ReverseSequence": (1,),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
TEXT = {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"}


@dataclass(frozen=True)
class Case:
    """A model of one operator, or of ONNX's function body for it, with its inputs and outputs.

    `left_out` is the reason why a case isn't counted among the operators of ordinary models; "" if it is
    counted.
    """

    name: str
    operator: str
    left_out: str
    model: bytes
    inputs: Mapping[str, Array]
    outputs: tuple[Array, ...]
    relative_tolerance: float
    absolute_tolerance: float


def load() -> list[Case]:
    """Return all node tests, in the order of their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {test.name: test for test in load_node_model_tests()}
    return [_case(test, found[_plain_name(test)]) for _, test in sorted(found.items())]


def _plain_name(test: Any) -> str:
    """Return the name of the test of the operator itself. A test `..._expanded` computes the same by the
    operator's body."""
    return test.name.partition("_expanded")[0]


def _case(test: Any, plain: Any) -> Case:
    model, node = onnx.ModelProto(), _operator(plain)
    model.CopyFrom(test.model)
    (inputs, outputs) = test.data_sets[0]
    positions = CONSTANT_INPUTS.get(node.op_type, ())
    constant = {node.input[position] for position in positions if position < len(node.input)}
    variable = {}
    for value, array in zip(test.model.graph.input, map(_array, inputs), strict=True):
        if value.name in constant:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            model.graph.input.remove(value)
        else:
            variable[value.name] = array
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    expected = tuple(map(_array, outputs))
    data = model.SerializeToString()
    return Case(test.name, operator, _left_out(plain), data, variable, expected, test.rtol, test.atol)


def _array(value: Any) -> Any:
    """Return the array of a tensor; return any other value unchanged."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _operator(test: Any) -> onnx.NodeProto:
    """Return the tested node: the last one, because the others compute its inputs."""
    node: onnx.NodeProto = test.model.graph.node[-1]
    return node


def _left_out(test: Any) -> str:
    nodes = list(test.model.graph.node)
    values = [*test.model.graph.input, *test.model.graph.output]
    if any(node.op_type in TEXT for node in nodes) or any(map(_is_text, values)):
        return "text"
    if any("Sequence" in node.op_type and node.op_type != "ReverseSequence" for node in nodes):
        return "sequence"
    if any(value.type.HasField("sequence_type") for value in values):
        return "sequence"
    if any(node.op_type.startswith("Optional") for node in nodes):
        return "optional"
    if any(value.type.HasField("optional_type") for value in values):
        return "optional"
    if any(node.op_type in RANDOM for node in nodes):
        return "random"
    return "training" if any(map(_trains, nodes)) else ""


def _is_text(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == onnx.TensorProto.STRING


def _trains(node: onnx.NodeProto) -> bool:
    if "training" in node.domain:
        return True
    if node.op_type == "Dropout" and len(node.input) > 2:
        return True
    return any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)


def every(cases: Iterable[Case], step: int) -> list[Case]:
    """Return every `step`-th case."""
    return list(cases)[::step]
