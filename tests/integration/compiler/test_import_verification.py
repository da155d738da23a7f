"""An imported model is compared with what its file defines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from compiler.children.verification import verify_import
from compiler.importing import operators
from compiler.importing.graph import Graph, Node, Value
from compiler.importing.model import import_file
from compiler.importing.onnx_file import OnnxFile, read_file
from compiler.importing.spec import ModelError, NoReference
from compiler.verifying.imported import verify
from compiler.verifying.inputs import USUAL, input_sets
from compiler.verifying.reference import Reference
from tests.onnx_models import Builder, leaky, residual

TARGET = '{"kind":"llvm","num-cores":1}'


def _verify(file: OnnxFile) -> Sequence[str]:
    return list(verify(file, import_file(file), TARGET, TARGET))


def _three_nodes() -> OnnxFile:
    b = Builder()
    result = b.op("Relu", b.op("Floor", b.op("Mul", "x", b.weight(4, low=3, high=5))))
    return read_file(b.model({"x": [4]}, {result: [4]}), {})


@pytest.fixture
def wrong_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    def ceil(graph: Graph, node: Node) -> Value:
        return graph.op("Ceil", node.input(0))

    monkeypatch.setitem(operators.CONVERTERS, ("", "Floor"), ceil)


def test_two_sets_of_inputs_are_compared() -> None:
    assert _verify(_three_nodes()) == [*USUAL]


@pytest.mark.usefixtures("wrong_floor")
def test_the_first_node_whose_value_differs_is_named() -> None:
    with pytest.raises(
        ModelError, match=r"^operator Floor of node 'floor1' is imported wrongly \('floor1.out'"
    ):
        _verify(_three_nodes())


@pytest.mark.usefixtures("wrong_floor")
def test_the_reference_evaluator_alone_calls_no_model_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = r"onnxruntime isn't installed.*operator Floor of node 'floor1' is imported wrongly"
    with pytest.raises(NoReference, match=said):
        _verify(_three_nodes())


def test_the_reference_evaluator_serves_where_there_is_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert _verify(_three_nodes()) == [*USUAL]


def test_the_file_is_compared_as_it_was_before_its_functions_were_inlined() -> None:
    """What rewrites a model before both sides see it would make them wrong together."""
    model = leaky("x")
    right = read_file(model.SerializeToString(), {})
    assert _verify(right) == [*USUAL]
    wrong = onnx.ModelProto()
    wrong.CopyFrom(right.proto)
    next(node for node in wrong.graph.node if node.op_type == "LeakyRelu").attribute[0].f = 0.01
    with pytest.raises(ModelError, match="doesn't compute what the file defines"):
        _verify(replace(right, proto=wrong))


def test_a_model_that_neither_can_run_is_said() -> None:
    b = Builder()
    file = read_file(b.model({"x": [4]}, {b.op("Relu", "x"): [4]}), {})
    file.proto.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(NoReference, match="NoSuchOperator"):
        Reference(file.proto, file.output_names).compute({"x": np.zeros(4, np.float32)})


def test_inputs_are_in_the_range_of_what_they_are_for() -> None:
    b = Builder()
    table = b.weight(7, 3)
    ids = b.op("Unsqueeze", b.op("Cast", "ids", to=onnx.TensorProto.INT32), b.constant(np.array([0])))
    model = onnx.load_from_string(
        b.model({"ids": [50], "attention_mask": [8], "image": [9]}, {b.op("Gather", table, ids): [1, 50, 3]})
    )
    for value in model.graph.input[:2]:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT64
    first, second = input_sets(read_file(model.SerializeToString(), {}))
    assert {int(inputs["ids"].max()) for inputs in (first, second)} == {6}
    assert int(first["ids"].min()) == 0
    assert first["attention_mask"].tolist() == [1] * 8
    assert second["attention_mask"].tolist() == [1] * 6 + [0] * 2
    assert first["image"].min() < 0
    assert 0 <= second["image"].min() < second["image"].max() <= 1


def test_a_child_verifies() -> None:
    assert verify_import(residual(batch="n"), {"input": (2, 3, 8, 8)}, TARGET) == ""


def test_a_verification_that_takes_too_long_is_said() -> None:
    assert verify_import(residual(), {}, TARGET, timeout_s=0.1) == "it takes longer than 0.1 s"


def test_an_error_that_a_child_finds_is_raised() -> None:
    with pytest.raises(ModelError, match="cut short"):
        verify_import(residual()[:-40], {}, TARGET)
