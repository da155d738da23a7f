"""Bring back each fault that the importer once had. The verification must refuse the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from onnx import parser
from tvm import relax

from compiler.importing import folding, legalization, model, operators
from compiler.importing.model import import_file
from compiler.importing.onnx_file import read_file
from compiler.importing.onnx_graph import Graph
from compiler.importing.spec import ModelError
from compiler.importing.values import Node, Value
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
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_importer_is_refused(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {FAULTS[fault]}')
    file = read_file(proto.SerializeToString(), {})
    assert all(agreement.note == "" for agreement in verify(file, import_file(file), TARGET, TARGET))
    fault(monkeypatch)
    wrong = read_file(proto.SerializeToString(), {})
    with pytest.raises(ModelError, match=r"is imported wrongly|computes '.*' otherwise"):
        list(verify(wrong, import_file(wrong), TARGET, TARGET))
