"""A model's outline has the inputs, outputs and operators of its file, and says what can't be imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from compiler.children import outlines
from compiler.children.outlines import outline_model
from compiler.importing.formats.outlines import read_outline
from compiler.importing.spec import ModelError
from core.model_format import ModelFormat
from core.model_outline import InputOutline, ModelOutline, OperatorOutline
from tests import models_by_format
from tests.models_by_format import Sample
from tests.onnx_models import residual


def custom(*nodes: onnx.NodeProto, **weights: list[float]) -> bytes:
    """A model with an unknown operator, and other nodes."""
    own = helper.make_node("Blend", ["x"], ["y"], domain="acme")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 0, 3]) for name in ("x", "y")]
    stored = [
        helper.make_tensor(name, TensorProto.FLOAT, [len(values)], values) for name, values in weights.items()
    ]
    graph = helper.make_graph([own, *nodes], "custom", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets)
    return made.SerializeToString()


def test_an_onnx_models_dimensions_may_be_open() -> None:
    outline = read_outline(residual(batch="n"))
    assert outline.inputs == (InputOutline("input", "float32", ("n", 3, 8, 8)),)
    assert outline.format is ModelFormat.ONNX
    assert len(outline.outputs) == 1
    assert {one.name: one.count for one in outline.operators}["Conv"] >= 2
    assert all(one.supported for one in outline.operators)


def test_unknown_operators_in_nested_graphs_are_named() -> None:
    inner = helper.make_graph(
        [helper.make_node("Mix", ["x"], ["z"], domain="acme")],
        "then",
        [],
        [helper.make_empty_tensor_value_info("z")],
    )
    chosen = helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner)
    outline = read_outline(custom(chosen, c=[1.0]))
    assert outline.inputs == (InputOutline("x", "float32", ("n", "", 3)),)
    unsupported = {one.name: one.count for one in outline.operators if not one.supported}
    assert unsupported == {"acme.Blend": 1, "acme.Mix": 2}


def test_unsupported_operators_on_constants_are_accepted() -> None:
    nodes = [
        helper.make_node("Scaler", [name], [f"{name} scaled"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0])
        for name in ("x", "w")
    ]
    nodes.append(helper.make_node("Blend", ["w"], ["v"], domain="acme"))
    outline = read_outline(custom(*nodes, w=[1.0, 2.0]))
    assert OperatorOutline("ai.onnx.ml.Scaler", 1, True) in outline.operators
    assert OperatorOutline("ai.onnx.ml.Scaler", 1, False) in outline.operators
    assert OperatorOutline("acme.Blend", 2, False) in outline.operators


@pytest.mark.parametrize(
    ("sample", "operator"),
    [
        (models_by_format.onnx_archive, "MatMul"),
        (models_by_format.tflite_model, "FULLY_CONNECTED"),
        (models_by_format.stablehlo_program, "stablehlo.dot_general"),
        (models_by_format.tvm_module, "matmul"),
    ],
)
def test_other_formats_have_outlines_too(sample: Callable[[], Sample], operator: str) -> None:
    outline = read_outline(sample().data)
    assert outline.inputs
    assert outline.outputs
    assert operator in {one.name for one in outline.operators}
    assert all(one.supported for one in outline.operators)


@pytest.mark.slow
def test_a_child_reads_the_file(tmp_path: Path) -> None:
    assert outline_model(residual(batch="n")) == read_outline(residual(batch="n"))
    with pytest.raises(ModelError, match="it is cut short"):
        outline_model(residual()[:-40])


def test_a_childs_reply_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="can't occur 0 times"):
        OperatorOutline("Conv", 0, True)
    with pytest.raises(ValueError, match="impossible shape"):
        InputOutline("x", "float32", (-1,))
    many = tuple(InputOutline(str(number), "float32", ()) for number in range(1001))
    with pytest.raises(ValueError, match="more than 1000 inputs"):
        ModelOutline(ModelFormat.ONNX, many, (), ())
    assert InputOutline("a\x1b[2J", "float32", None).name == "a\ufffd[2J"
    monkeypatch.setattr(outlines, "MAX_REPLY_BYTES", 10)
    with pytest.raises(ModelError, match="the model's file can't be read: it ended the compiler"):
        outline_model(residual())
