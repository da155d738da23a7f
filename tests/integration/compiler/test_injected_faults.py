"""Bring back each fault that the importer once had. The verification must refuse the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
import tvm
from onnx import parser
from tvm import relax, tirx

from compiler.codegen import element_types
from compiler.importing import folding, legalization, model, operators
from compiler.importing.model import import_file
from compiler.importing.onnx_file import OnnxFile, read_file
from compiler.importing.onnx_graph import Graph
from compiler.importing.operators import forms, resampling
from compiler.importing.spec import ModelError
from compiler.importing.values import Node, Value
from compiler.tvmscript import T
from compiler.verifying.imported import verify

pytestmark = pytest.mark.slow
TARGET = '{"kind":"llvm","num-cores":1}'


def places_of_tvm(patch: pytest.MonkeyPatch) -> None:
    """TVM's own argmax returns -1 if no element exceeds the type's least number."""
    patch.setattr(legalization, "_LEGALIZATIONS", {})


def finite_starts(patch: pytest.MonkeyPatch) -> None:
    """TVM's own max pooling returns the least finite number if all elements of a window are -infinity."""
    patch.setattr(legalization, "_begin_at_infinity", lambda function, *_: function)


def sums_of_halves(patch: pytest.MonkeyPatch) -> None:
    """Sum 8,192 numbers in float16. The sum stalls once the next number is below half of its last digit."""

    def convert(graph: Graph, node: Node) -> Value:
        return graph.emit(relax.op.mean(node.input(0).expr, None, True))

    patch.setitem(operators.CONVERTERS, ("", "ReduceMean"), convert)
    patch.setattr(model, "reduce_in_floats", lambda module: module)


def remainders_of_the_divisor(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(folding._EXACT, "Mod", lambda _node, given: np.fmod(given[0], given[1]))


def padding_at_the_other_end(patch: pytest.MonkeyPatch) -> None:
    right = operators.CONVERTERS["", "ConvTranspose"]

    def convert(graph: Graph, node: Node) -> object:
        if "output_shape" not in node.attributes:
            return right(graph, node)
        full = graph.op("ConvTranspose", node.input(0), node.input(1), strides=node.attributes["strides"])
        first, end = np.array([0]), np.array(node.attributes["output_shape"])
        return graph.op("Slice", full, first, end, np.array([2]))

    patch.setitem(operators.CONVERTERS, ("", "ConvTranspose"), convert)


def products_with_a_mask(patch: pytest.MonkeyPatch) -> None:
    """-infinity times 0 is NaN."""

    def convert(graph: Graph, node: Node) -> Value:
        data = node.input(0)
        mask = graph.op("Greater", data, np.array(1, np.float32))
        return graph.op("Mul", data, graph.op("Cast", mask, to=1))

    patch.setitem(operators.CONVERTERS, ("", "ThresholdedRelu"), convert)


def numbers_for_nan(patch: pytest.MonkeyPatch) -> None:
    def convert(graph: Graph, node: Node) -> Value:
        first, second = node.input(0), node.input(1)
        return graph.op("Where", graph.op("Greater", first, second), first, second)

    patch.setitem(operators.CONVERTERS, ("", "Max"), convert)


def coordinates_of_newer_versions(patch: pytest.MonkeyPatch) -> None:
    """From opset 11 on, pixels are resized around their middles."""

    def convert(graph: Graph, node: Node) -> Value | None:
        if node.opset >= 11:
            return None
        return graph.op("Resize", node.input(0), None, node.input(1), mode="linear")

    patch.setitem(forms.FORMS, "Resize", convert)


def means_of_another_type(patch: pytest.MonkeyPatch) -> None:
    """TVM's means of int32 are int64."""

    def convert(graph: Graph, node: Node) -> Value:
        wide = graph.op("Cast", node.input(0), to=onnx.TensorProto.INT64)
        return graph.op("Div", graph.op("ReduceSum", wide, np.array([1])), np.array(node.input(0).shape[1]))

    patch.setitem(operators.CONVERTERS, ("", "ReduceMean"), convert)


def reductions_left_out(patch: pytest.MonkeyPatch) -> None:
    """Without axes, `noop_with_empty_axes` still squares each element."""
    patch.setitem(forms._EACH, "ReduceSumSquare", lambda _graph, data: data)


def samples_of_empty_boxes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        resampling, "_sample_count", lambda size: tirx.Cast("int32", tirx.max(tirx.ceil(size), T.float32(1)))
    )


def averages_without_the_padding(patch: pytest.MonkeyPatch) -> None:
    def convert(graph: Graph, node: Node) -> Value:
        squares = graph.op("Mul", node.input(0), node.input(0))
        pads, kernel = (node.attributes[name] for name in ("pads", "kernel_shape"))
        mean = graph.op("AveragePool", squares, kernel_shape=kernel, pads=pads)
        return graph.op("Sqrt", graph.op("Mul", mean, np.array(np.prod(kernel), np.float32)))

    patch.setitem(operators.CONVERTERS, ("", "LpPool"), convert)


def booleans_as_floats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(element_types, "_compare_bytes", lambda comparison: comparison)


def functions_of_halves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(element_types, "_FUNCTIONS", frozenset())


Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: Mapping[Fault, str] = {
    places_of_tvm: "(float[2,3] x) => (int64[2,1] y) { y = ArgMax<axis = 1>(x) }",
    finite_starts: "(float[1,1,4,4] x) => (float[1,1,2,2] y) "
    "{ y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }",
    sums_of_halves: "(float16[1,8192] x) => (float16[1,1] y) { y = ReduceMean(x) }",
    remainders_of_the_divisor: "(int64[4] x) => (int64[4] y) "
    "<int64[4] a = {7, -7, 8, -1}, int64[4] b = {3, 3, -3, 3}> { c = Mod(a, b) y = Add(x, c) }",
    padding_at_the_other_end: "(float[1,1,3] x) => (float[1,1,6] y) <float[1,1,3] w = {1, 2, 3}> "
    "{ y = ConvTranspose<strides = [2], output_shape = [6]>(x, w) }",
    products_with_a_mask: "(float[8] x) => (float[8] y) { y = ThresholdedRelu(x) }",
    numbers_for_nan: "(float[8] x) => (float[8] y) <float[8] a = {0, 0, 0, 0, 0, 0, 0, 0}> { y = Max(x, a) }",
    coordinates_of_newer_versions: "(float[1,1,3,3] x) => (float[1,1,6,6] y) "
    '<float[4] scales = {1, 1, 2, 2}> { y = Resize<mode = "linear">(x, scales) }',
    means_of_another_type: "(int32[2,4] x) => (int32[2,1] y) { y = ReduceMean<axes = [1]>(x) }",
    reductions_left_out: "(float[4] x) => (float[4] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }",
    samples_of_empty_boxes: "(float[1,1,4,4] x, float[6,4] boxes) => (float[6,1,1,1] y) "
    "<int64[6] images = {0, 0, 0, 0, 0, 0}> { y = RoiAlign(x, boxes, images) }",
    averages_without_the_padding: "(float[1,1,4,4] x) => (float[1,1,5,5] y) "
    "{ y = LpPool<kernel_shape = [2, 2], pads = [1, 1, 1, 1]>(x) }",
}
# The opset of a model, if it isn't 17.
OPSETS: Mapping[Fault, int] = {coordinates_of_newer_versions: 10, reductions_left_out: 18}
WITHOUT_CODE: Mapping[Fault, str] = {
    booleans_as_floats: "(bool[4] x) => (bool[4] y) <bool[4] a = {0, 1, 1, 0}> { y = Equal(x, a) }",
    functions_of_halves: "(float16[4] x) => (float16[4] y) { y = Atan(x) }",
}


def file_of(graph: str, opset: int = 17) -> OnnxFile:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {graph}')
    return read_file(proto.SerializeToString(), {})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_importer_is_refused(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(FAULTS[fault], OPSETS.get(fault, 17))
    assert all(agreement.note == "" for agreement in verify(file, import_file(file), TARGET, TARGET))
    fault(monkeypatch)
    wrong = file_of(FAULTS[fault], OPSETS.get(fault, 17))
    with pytest.raises(ModelError, match=r"is imported wrongly|computes '.*' otherwise"):
        list(verify(wrong, import_file(wrong), TARGET, TARGET))


@pytest.mark.parametrize("fault", WITHOUT_CODE)
def test_an_operator_without_code_is_never_verified(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(WITHOUT_CODE[fault])
    assert all(agreement.note == "" for agreement in verify(file, import_file(file), TARGET, TARGET))
    fault(monkeypatch)
    with pytest.raises(tvm.error.InternalError):
        next(verify(file, import_file(file), TARGET, TARGET))
