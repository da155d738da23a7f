"""Models of every format are verified with inputs at the edges of their types."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import parser
from tvm import relax

from compiler.importing import stablehlo
from compiler.importing.formats import exported_operators
from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.reading import read_model
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.importing.formats.tflite_operators import Converter
from compiler.importing.spec import ModelError
from compiler.verifying.edges import EDGES
from compiler.verifying.imported import Agreement, verify_file
from compiler.verifying.inputs import ORDINARY_SETS
from compiler.verifying.steps.formats import index_extents_of
from tests.stablehlo_models import exported
from tests.tflite_models import Quantization, TfliteBuilder

pytestmark = pytest.mark.slow
TARGET = '{"kind":"llvm","num-cores":1}'
jnp = jax.numpy


def verified(data: bytes) -> list[Agreement]:
    return list(verify_file(read_model(data, {}), TARGET, TARGET))


def kinds(data: bytes) -> list[str]:
    return [agreement.inputs for agreement in verified(data)]


def without_nan(tensor: Any) -> Any:
    """Return a tensor with 0 for NaN."""
    return relax.op.where(relax.op.isnan(tensor), relax.const(0.0), tensor)


def test_a_wrong_operation_of_stablehlo_is_named_at_edge_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = exported(lambda x: jnp.cos(jnp.sin(x) + 1), np.zeros((2, 9), np.float32))
    assert kinds(data) == [*ORDINARY_SETS, *EDGES]

    def cosine(importer: Any, op: Any) -> Any:
        (operand,) = importer.operands(op)
        return importer.emit(without_nan(relax.op.cos(operand.value.expr)))

    monkeypatch.setitem(stablehlo.CONVERTERS, "stablehlo.cosine", cosine)
    with pytest.raises(ModelError, match=r"for NaN, operation stablehlo.cosine at .* computes 'value\d"):
        verified(data)


def test_a_loop_and_a_call_of_stablehlo_are_steps() -> None:
    def function(x: Any) -> Any:
        x = jax.nn.relu(x)
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.minimum(y * 2, x), x)

    assert kinds(exported(function, np.zeros((3, 3), np.float32))) == [*ORDINARY_SETS, *EDGES]


def test_a_stablehlo_cast_of_nan_is_accepted() -> None:
    data = exported(lambda x: x.astype(np.int32), np.zeros(6, np.float32))
    assert kinds(data) == [*ORDINARY_SETS, *EDGES]


def squares() -> bytes:
    builder = TfliteBuilder()
    left, right = builder.input((1, 9)), builder.input((1, 9))
    sine, result = builder.tensor((1, 9)), builder.tensor((1, 9))
    builder.op("SIN", [left], [sine])
    builder.op("SQUARED_DIFFERENCE", [sine, right], [result])
    return builder.model([result])


def test_a_wrong_operator_of_tflite_is_named_at_edge_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = squares()
    assert kinds(data) == [*ORDINARY_SETS, *EDGES]

    def squared(converter: Any, op: Any) -> Any:
        left, right = (converter.get_tensor_expr(one) for one in converter.get_input_tensors(op))
        difference = converter.bb.normalize(relax.op.subtract(left, right))
        return without_nan(converter.bb.normalize(relax.op.multiply(difference, difference)))

    monkeypatch.setattr(Converter, "_squared_difference", squared)
    with pytest.raises(
        ModelError, match="for NaN, operator SQUARED_DIFFERENCE that computes 't3' computes 't3' otherwise"
    ):
        verified(data)


def test_an_operator_that_is_wrong_for_usual_inputs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def added(converter: Any, op: Any) -> Any:
        left, right = (converter.get_tensor_expr(one) for one in converter.get_input_tensors(op))
        return relax.op.add(left, right)

    monkeypatch.setattr(Converter, "_squared_difference", added)
    with pytest.raises(
        ModelError, match=r"^operator SQUARED_DIFFERENCE that computes 't3' is imported wrongly .its values"
    ):
        verified(squares())


def test_a_quantized_tflite_model_is_compared_at_edge_inputs() -> None:
    builder = TfliteBuilder()
    step = Quantization(0.05, 3)
    data, narrow, result = builder.input((1, 9)), builder.tensor((1, 9), "int8", quantization=step), None
    builder.op("QUANTIZE", [data], [narrow])
    result = builder.tensor((1, 9))
    builder.op("DEQUANTIZE", [narrow], [result])
    found = verified(builder.model([result]))
    assert [one.inputs for one in found] == [*ORDINARY_SETS, *EDGES]


def test_values_that_litert_bounds_or_rounds_stay_unchanged() -> None:
    """LiteRT's sum of infinities is the greatest number, and it rounds data to bytes if weights are bytes."""
    builder = TfliteBuilder()
    x, y = builder.input((1, 6)), builder.input((1, 6))
    total, result = builder.tensor((1, 6)), builder.tensor((1, 3))
    builder.op("ADD", [x, y], [total], "AddOptions")
    weight = builder.constant(
        np.arange(18, dtype=np.int8).reshape(3, 6), Quantization([0.1, 0.2, 0.3], [0] * 3)
    )
    builder.op("FULLY_CONNECTED", [total, weight, -1], [result], "FullyConnectedOptions")
    assert [one.inputs for one in verified(builder.model([total, result]))] == [*ORDINARY_SETS, *EDGES]


def test_nan_that_xla_spreads_to_other_groups_is_accepted() -> None:
    x, w = (np.zeros(shape, np.float32) for shape in ((4, 5, 5, 2), (3, 3, 2, 4)))
    axes = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "padding": "SAME", "batch_group_count": 2}
    data = exported(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), **axes), x, w)
    assert kinds(data) == [*ORDINARY_SETS, *EDGES]


def test_int16_results_may_differ_by_one() -> None:
    builder = TfliteBuilder()
    data = builder.input((1, 200), "int16", Quantization(2**-12))
    result = builder.tensor((1, 200), "int16", quantization=Quantization(2**-15))
    builder.op("LOGISTIC", [data], [result])
    assert len(list(verified(builder.model([result])))) >= 2


def test_indices_of_a_tflite_model_reach_both_ends() -> None:
    builder = TfliteBuilder()
    table = builder.constant(np.arange(10, dtype=np.float32).reshape(5, 2))
    at, result = builder.input((3,), "int32"), builder.tensor((3, 2))
    builder.op("GATHER", [table, at], [result], "GatherOptions", axis=0)
    file = read_model(builder.model([result]), {})
    assert isinstance(file, TfliteModel)
    assert index_extents_of(file) == {"t1": 5}


def program(function: Callable[..., Any], *inputs: Any) -> bytes:
    torch: Any = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    return saved(Module(), *inputs)


def saved(module: Any, *inputs: Any) -> bytes:
    torch: Any = pytest.importorskip("torch")
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), inputs), data)
    return data.getvalue()


def test_a_wrong_operator_of_an_exported_program_is_named_at_edge_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch: Any = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def forward(self, input: Any) -> Any:  # noqa: A002 (a name that PyTorch's graphs avoid)
            return torch.nn.functional.elu(torch.sin(input))

    data = saved(Network(), torch.zeros(2, 9))
    assert kinds(data) == [*ORDINARY_SETS, *EDGES]
    elu = exported_operators.CONVERTERS["elu.default"]
    wrong = {**exported_operators.CONVERTERS, "elu.default": lambda *given: without_nan(elu(*given))}
    monkeypatch.setattr("compiler.importing.formats.exported_program.CONVERTERS", wrong)
    with pytest.raises(ModelError, match="for NaN, operator elu of node 'elu' computes 'elu' otherwise"):
        verified(data)


def test_indices_of_an_exported_program_reach_both_ends() -> None:
    torch: Any = pytest.importorskip("torch")
    table = torch.arange(10.0).reshape(5, 2)
    data = program(lambda at: torch.nn.functional.embedding(at, table), torch.tensor([0, 1, 2]))
    file = read_model(data, {})
    assert isinstance(file, ExportedProgram)
    assert list(index_extents_of(file).values()) == [5]


QUANTIZED = """g (float[1,9] x) => (float[1,9] y)
<float scale = {0.05}, uint8 zero = {3}> {
    q = QuantizeLinear(x, scale, zero)
    y = DequantizeLinear(q, scale, zero)
}"""
SELECTING = """g (float[1,4,4] boxes, float[1,1,4] scores) => (int64[n,3] selected)
<int64[1] most = {3}, float[1] overlap = {0.5}> {
    placed = Abs(boxes)
    selected = NonMaxSuppression(placed, scores, most, overlap)
}"""


@pytest.mark.parametrize("graph", [QUANTIZED, SELECTING], ids=["quantized", "selecting"])
def test_rounding_and_selecting_onnx_models_are_compared_at_edge_inputs(graph: str) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}')
    onnx.checker.check_model(model)
    assert set(kinds(model.SerializeToString())) == {*ORDINARY_SETS, *EDGES}


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_scatter_that_spreads_nan_is_right(reduction: str) -> None:
    """ONNX Runtime keeps the number that is compared with NaN. numpy and ONNX's text return NaN."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float[5, 3] x, float[2, 3] u) => (float[5, 3] y)
    <int64[2, 1] places = {{1, 3}}> {{ y = ScatterND <reduction = "{reduction}"> (x, places, u) }}"""
    assert set(kinds(parser.parse_model(text).SerializeToString())) == {*ORDINARY_SETS, *EDGES}
