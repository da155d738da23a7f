"""An imported model is compared with the computation that its file defines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import parser

from compiler.children.verification import Verification, verify_import
from compiler.importing import operators
from compiler.importing.model import RelaxModel, import_file
from compiler.importing.onnx_file import OnnxFile, read_file
from compiler.importing.onnx_graph import Graph
from compiler.importing.spec import ModelError, NoReference
from compiler.importing.values import Node, Value
from compiler.measuring.outputs import CHANGES_LIKEWISE
from compiler.verifying.edges import (
    EDGES,
    INFINITIES,
    LEAST,
    LIMITS,
    QUOTIENT_IS_OPEN,
    SMALL,
    ZERO_DIVISORS,
    EdgeSet,
    edge_sets,
    judge,
)
from compiler.verifying.imported import Imported, verify
from compiler.verifying.inputs import ORDINARY_SETS, divisors, index_extents, input_sets
from compiler.verifying.layers import Layers
from compiler.verifying.reference import Reference
from compiler.verifying.steps.step import Step
from tests.onnx_models import Builder, leaky, residual, unsteady

TARGET = '{"kind":"llvm","num-cores":1}'


def _verify(file: OnnxFile) -> Sequence[str]:
    return [agreement.inputs for agreement in verify(file, import_file(file), TARGET, TARGET)]


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
    assert _verify(_three_nodes()) == [*ORDINARY_SETS, *EDGES]


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


def test_the_runtime_alone_calls_no_model_wrong() -> None:
    """ONNX Runtime returns the least float where ONNX masks scores with -inf."""
    file = _of(
        """g (float[1,1,2,4] q, float[1,1,3,4] k) => (float[1,1,2,4] y, float[1,1,2,3] scores) {
            y, , , scores = Attention<is_causal = 1, qk_matmul_output_mode = 2>(q, k, k)
        }""",
        opset=23,
    )
    said = "ONNX Runtime and ONNX's reference evaluator compute different outputs, and the import agrees"
    with pytest.raises(NoReference, match=f"{said} with the evaluator .*operator Attention of"):
        _verify(file)


@pytest.mark.parametrize(
    "graph",
    [
        """g (float[8] x, float low) => (float[8] y, float[8] z, float[8] u) <float k = {-1}> {
            y = Clip(x, k)
            z = Clip(x)
            u = Clip(x, low)
        }""",
        """g (float[3,4] x, float[4] s) => (float[3,4] y, float[3,1] mean) {
            y, mean = LayerNormalization(x, s)
        }""",
        """g (float[2,3,4,5] x, float[3] s, float[3] b) => (float[2,3,4,5] y) {
            y = InstanceNormalization(x, s, b)
        }""",
        "g (float[1,10,10,1] x) => (float[1,10,10,2] y) { y = DFT<axis = 1>(x) }",
        """g (float[4] x, float[4] u) => (float[4] y) <int64[4] at = {0, 0, 1, 3}> {
            y = ScatterElements<reduction = "max">(x, at, u)
        }""",
    ],
    ids=["Clip", "LayerNormalization", "InstanceNormalization", "DFT", "ScatterElements"],
)
def test_a_right_model_agrees_at_the_edges(graph: str) -> None:
    assert {*_verify(_of(graph))} >= {*ORDINARY_SETS, *EDGES}


def test_the_reference_evaluator_serves_where_there_is_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert _verify(_three_nodes()) == [*ORDINARY_SETS]


def test_the_reference_runs_the_file_before_inlining() -> None:
    """A rewrite before both sides read the model would make both wrong."""
    model = leaky("x")
    right = read_file(model.SerializeToString(), {})
    assert _verify(right) == [*ORDINARY_SETS, *EDGES]
    wrong = onnx.ModelProto()
    wrong.CopyFrom(right.proto)
    next(node for node in wrong.graph.node if node.op_type == "LeakyRelu").attribute[0].f = 0.01
    with pytest.raises(ModelError, match="doesn't compute what the file defines"):
        _verify(replace(right, proto=wrong))


def test_a_model_without_a_working_reference_is_reported() -> None:
    b = Builder()
    file = read_file(b.model({"x": [4]}, {b.op("Relu", "x"): [4]}), {})
    file.proto.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(NoReference, match="NoSuchOperator"):
        Reference(file.proto, file.output_names).compute({"x": np.zeros(4, np.float32)})


def test_drawn_inputs_are_in_the_range_of_their_use() -> None:
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


def test_a_nan_that_vanishes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No usual input shows it."""

    def relu(graph: Graph, node: Node) -> Value:
        zero = np.array(0, np.float32)
        return graph.op("Where", graph.op("Greater", node.input(0), zero), node.input(0), zero)

    monkeypatch.setitem(operators.CONVERTERS, ("", "Relu"), relu)
    with pytest.raises(
        ModelError, match=r"for NaN, operator Relu of node 'relu2' computes 'relu2.out' otherwise"
    ):
        _verify(_three_nodes())


def test_integers_at_the_ends_of_their_type_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def through_floats(graph: Graph, node: Node) -> Value | None:
        if node.input(0).dtype == "float64":
            return None
        wide = graph.op("Cast", node.input(0), to=onnx.TensorProto.DOUBLE)
        return graph.op("Cast", graph.op("Abs", wide), to=onnx.TensorProto.INT64)

    file = _of("g (int64[8] x) => (int64[8] y) { y = Abs(x) }")
    assert _verify(file) == [*ORDINARY_SETS, SMALL, LIMITS, LEAST]
    monkeypatch.setitem(operators.CONVERTERS, ("", "Abs"), through_floats)
    with pytest.raises(ModelError, match="for the least and greatest numbers"):
        _verify(file)


@pytest.mark.parametrize("kind", ["Mod", "Pow"])
def test_only_an_undefined_quotient_or_power_of_integers_is_open(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute values are right for numbers that aren't negative, as the usual ones are."""
    right = operators.CONVERTERS["", kind]

    def of_absolutes(graph: Graph, node: Node) -> object:
        return right(graph, replace(node, inputs=(graph.op("Abs", node.input(0)), *node.inputs[1:])))

    file = _of(f"g (int64[12] x) => (int64[12] y) <int64 k = {{3}}> {{ y = {kind}(x, k) }}")
    assert SMALL in _verify(file)
    monkeypatch.setitem(operators.CONVERTERS, ("", kind), of_absolutes)
    with pytest.raises(ModelError, match=f"for small integers of both signs, operator {kind} of"):
        _verify(file)


@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_a_single_wrong_value_among_thousands_is_found(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root mean square doesn't show it."""
    right = operators.CONVERTERS["", "Mod"]

    def but_the_last(graph: Graph, node: Node) -> object:
        data = node.input(0)
        is_last = np.arange(data.size).reshape(data.shape) == data.size - 1
        one = np.array(1, data.dtype)
        changed = graph.op("Where", is_last, graph.op("Add", data, one), data)
        return right(graph, replace(node, inputs=(changed, *node.inputs[1:])))

    text = f"g ({dtype}[128,128] x) => ({dtype}[128,128] y) <{dtype} k = {{3}}> {{ y = Mod<fmod = 1>(x, k) }}"
    assert SMALL in _verify(_of(text)) or dtype == "float"
    monkeypatch.setitem(operators.CONVERTERS, ("", "Mod"), but_the_last)
    with pytest.raises(ModelError, match=r"operator Mod of .* is imported wrongly \('y': 1 of 16384 values"):
        _verify(_of(text))


def test_a_difference_that_the_standard_leaves_open_is_a_note() -> None:
    file = _of("g (float[6] x) => (int32[6] y) { y = Cast<to = 6>(x) }")
    notes = {one.inputs: one.note for one in verify(file, import_file(file), TARGET, TARGET)}
    assert [*notes] == [*ORDINARY_SETS, *EDGES]
    assert any("which the standard leaves open" in note for note in notes.values())


def test_nodes_are_compiled_once_for_all_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model itself, and its nodes one by one."""
    compiled = []

    def count(model: RelaxModel, *arguments: str) -> Imported:
        compiled.append(model)
        return Imported(model, *arguments)

    monkeypatch.setattr("compiler.verifying.imported.Imported", count)
    file = _of("g (float[6] x) => (int32[6] y) { y = Cast<to = 6>(x) }")
    notes = [one.note for one in verify(file, import_file(file), TARGET, TARGET) if one.note]
    assert (len(notes) > 1, len(compiled)) == (True, 2)


def test_edge_sets_hold_small_extreme_and_nan_inputs() -> None:
    file = _of(
        """g (float[9] x, int32[7] k, int64[8] at) => (float[9] y, int32[7] m, float[8,3] z)
        <float[5,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}> {
            y = Neg(x)
            m = Neg(k)
            z = Gather(w, at)
        }"""
    )
    small, limits, nan, infinities, least = edge_sets(
        file.inputs, index_extents(file), next(iter(input_sets(file)))
    )
    assert {*np.sign(small.inputs["k"]).tolist()} == {-1, 1}
    assert np.abs(small.inputs["k"]).max() <= 9
    assert small.inputs["at"].min() >= 0
    assert {-(2**31), 2**31 - 1} <= {*limits.inputs["k"].tolist()}
    assert {0, 4, -1, -5} <= {*limits.inputs["at"].tolist()}
    zeros = limits.inputs["x"][limits.inputs["x"] == 0]
    assert {*np.signbit(zeros).tolist()} == {True, False}
    assert np.abs(limits.inputs["x"]).max() == np.finfo(np.float32).max
    assert [{*least.inputs[name].tolist()} for name in ("x", "k", "at")] == [{-np.inf}, {-(2**31)}, {0}]
    assert np.isnan(nan.inputs["x"]).sum() == 1
    assert np.isinf(infinities.inputs["x"]).sum() == 2
    assert (nan.inputs["at"] == infinities.inputs["at"]).all()


@pytest.mark.parametrize(
    "graph",
    [
        "g (int64[8] x, int64[8] d) => (int64[8] y) { y = Div(x, d) }",
        "g (int8[2,4] x, int8[4] d) => (int8[2,4] y) { n = Neg(d) m = Mul(n, d) y = Mod(x, m) }",
        "g (uint32 x, float[4] d) => (uint32[4] y) { a = Abs(d) c = Cast<to = 12>(a) y = Div(x, c) }",
    ],
)
def test_integers_are_divided_by_numbers_other_than_zero(graph: str) -> None:
    file = _of(graph)
    assert divisors(file) == {"d"}
    agreed = {one.inputs: one.note for one in verify(file, import_file(file), TARGET, TARGET)}
    assert LIMITS in agreed
    assert agreed[ZERO_DIVISORS] == QUOTIENT_IS_OPEN
    assert all(np.abs(inputs["d"]).min() >= 1 for inputs in input_sets(file))


def test_a_place_between_elements_may_miss_an_infinite_neighbor() -> None:
    """ONNX Runtime's place is a rounding error before the element, so that it reads the neighbor as well."""
    file = _of(
        """g (float[1,1,3,4] x) => (float[1,1,7,6] y) <int64[4] s = {1, 1, 7, 6}> {
            y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric">(x, , , s)
        }""",
        opset=19,
    )
    notes = {one.inputs: one.note for one in verify(file, import_file(file), TARGET, TARGET)}
    assert "which the standard leaves open" in notes[INFINITIES]


def test_divisors_of_floats_are_drawn_as_other_floats_are() -> None:
    assert not divisors(_of("g (float[8] x, float[8] d) => (float[8] y) { y = Div(x, d) }"))


def _of(graph: str, opset: int = 18) -> OnnxFile:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')
    return read_file(model.SerializeToString(), {})


def test_a_child_verifies() -> None:
    assert verify_import(residual(batch="n"), {"input": (2, 3, 8, 8)}, TARGET) == Verification()


def test_a_verification_timeout_is_reported() -> None:
    assert verify_import(residual(), {}, TARGET, timeout_s=0.1) == Verification("it takes longer than 0.1 s")


def test_an_error_that_a_child_finds_is_raised() -> None:
    with pytest.raises(ModelError, match="cut short"):
        verify_import(residual()[:-40], {}, TARGET)


def test_steps_after_an_overflow_are_not_compared_at_large_values() -> None:
    """One row of its input is NaN, the other so large that its square overflows."""
    step = Step(frozenset({"native_layer_norm"}), "a norm", ("x",), ("y",))
    x = np.array([[np.nan, 1], [3e38, 1]], np.float32)
    right, own = np.full((2, 2), np.nan, np.float32), np.array([[np.nan, np.nan], [0, 0]], np.float32)
    edge = EdgeSet("the least and greatest numbers", {"x": x}, finite=True)
    assert judge(step, {"x": x, "y": right}, {"y": own}, edge, "float32") is None
    small = np.array([[np.nan, 1], [3, 1]], np.float32)
    assert judge(step, {"x": small, "y": right}, {"y": own}, edge, "float32") is not None


def test_powers_that_are_no_integers_are_open() -> None:
    step = Step(frozenset({"Pow"}), "a power", ("x", "k"), ("y",))
    x, right = np.array([-3, 2], np.int32), np.array([-(2**31), 4], np.int32)
    for exponents, is_open in (([0.5, 2.0], True), ([3.0, 2.0], False)):
        k = np.array(exponents, np.float32)
        edge = EdgeSet(SMALL, {"x": x, "k": k}, finite=True)
        found = judge(step, {"x": x, "k": k, "y": right}, {"y": np.array([0, 4], np.int32)}, edge, "float32")
        assert found is not None
        assert found.is_open is is_open


def test_nan_may_spread_to_products_but_not_vanish() -> None:
    """XLA leaves out products with a constant 0, even of infinities."""
    step = Step(frozenset({"stablehlo.multiply"}), "a product", ("x",), ("y",))
    zero, nan = np.zeros(1, np.float32), np.full(1, np.nan, np.float32)
    edge = EdgeSet("infinities", {"x": nan}, finite=False)
    assert judge(step, {"x": nan, "y": zero}, {"y": nan}, edge, "float32") is None
    assert judge(step, {"x": nan, "y": nan}, {"y": zero}, edge, "float32") is not None


@pytest.mark.slow
def test_a_network_that_amplifies_rounding_errors_is_compared_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = read_file(unsteady(10, 40.0), {})
    agreements = list(verify(file, import_file(file), TARGET, TARGET))
    assert [one.inputs for one in agreements][:2] == list(ORDINARY_SETS)
    # One set is enough to see it; which one rounds differently depends on the processor.
    assert any(CHANGES_LIKEWISE in one.note for one in agreements)
    monkeypatch.setattr(Layers, "of", lambda file: None)
    with pytest.raises(NoReference, match=CHANGES_LIKEWISE):
        list(verify(file, import_file(file), TARGET, TARGET))


def test_a_wrong_layer_of_an_unsteady_network_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def cosine(graph: Graph, node: Node) -> Value:
        return graph.op("Cos", node.input(0))

    monkeypatch.setitem(operators.CONVERTERS, ("", "Sin"), cosine)
    file = read_file(unsteady(6, 40.0), {})
    with pytest.raises(ModelError, match=r"operator QuantizeLinear of node .* is imported wrongly"):
        list(verify(file, import_file(file), TARGET, TARGET))
