"""Subgraphs have the names of the model's nodes that they come from, in every format."""

from __future__ import annotations

import io
import warnings
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from jax import lax

from compiler.importing.formats.reading import read_model
from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.importing.node_names import MAX_CHARS, readable
from compiler.variants.choice import VariantModel
from tests.models_by_format import tflite_model
from tests.onnx_models import Builder, residual, transposed
from tests.stablehlo_models import exported

TARGET = '{"kind":"llvm","num-cores":2}'


def layers(data: bytes) -> list[tuple[str, str]]:
    """Return the layer and the operators of each task."""
    tasks = extract_tasks(fuse(read_model(data, {}).to_relax(), TARGET))
    return [(task.layer, task.name.partition(" ")[0]) for task in tasks]


def test_an_onnx_models_nodes_name_its_subgraphs() -> None:
    assert layers(residual()) == [
        ("conv0", "transpose"),
        ("conv0", "conv2d_add_relu"),
        ("conv3", "conv2d_add_add_relu"),
        ("globalaveragepool7", "mean"),
        ("flatten8", "transpose_reshape"),
        ("gemm9", "matmul_add"),
    ]


def test_a_subgraph_that_occurs_several_times_has_its_first_name() -> None:
    b = Builder()
    weight, x = b.weight(8, 8), "input"
    for number in range(3):
        x = b.op("Relu", b.op("MatMul", x, weight))
        b.nodes[-2].name, b.nodes[-1].name = f"/layer{number}/fc/MatMul", f"/layer{number}/act/Relu"
    data = b.model({"input": [1, 8]}, {x: [1, 8]})
    (task,) = extract_tasks(fuse(read_onnx(data, {}), TARGET))
    assert (task.layer, task.weight) == ("/layer0/fc/MatMul", 3)


def test_a_node_without_a_name_is_named_by_its_output_and_a_loops_body_by_the_loop() -> None:
    b = Builder()
    x = b.op("MatMul", "input", b.weight(8, 8))
    b.nodes[-1].name = ""
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Exp", ["state"], ["next"], name="inner"),
            onnx.helper.make_node("Identity", ["keep"], ["going"]),
        ],
        "body",
        [
            onnx.helper.make_tensor_value_info("count", onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("keep", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("state", onnx.TensorProto.FLOAT, [1, 8]),
        ],
        [
            onnx.helper.make_tensor_value_info("going", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("next", onnx.TensorProto.FLOAT, [1, 8]),
        ],
    )
    times, going = b.constant(np.array(2, np.int64)), b.constant(np.array(True))
    looped = b.op("Softmax", b.op("Loop", times, going, x, body=body))
    b.nodes[-2].name = "the loop"
    found = dict(layers(b.model({"input": [1, 8]}, {looped: [1, 8]})))
    assert "matmul0.out" in found
    assert "inner" not in found


def test_variants_have_the_layer_of_their_original() -> None:
    tasks = VariantModel.of(read_onnx(transposed(), {}), TARGET).tasks()
    own = {task.workload_hash: task for task in tasks if not task.variant}
    variants = [task for task in tasks if task.variant]
    assert variants
    assert all(task.layer == own[task.variant_of].layer != "" for task in variants)


def test_stablehlo_names_where_its_operations_come_from() -> None:
    weight = np.ones((3, 3, 4, 8), np.float32)

    def network(x: Any) -> Any:
        with jax.named_scope("stem"):
            return lax.conv_general_dilated(
                x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

    ((layer, _),) = layers(exported(network, np.ones((1, 8, 8, 4), np.float32)))
    assert "stem/conv_general_dilated" in layer


def test_tflite_names_the_tensors_that_are_computed() -> None:
    assert {layer for layer, _ in layers(tflite_model().data)} == {"y"}


def exported_program() -> bytes:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    network = nn.Sequential()
    network.add_module("stem", nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()))
    network.add_module("head", nn.Conv2d(8, 4, 1))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 8, 8),)), buffer)
    return buffer.getvalue()


def test_pytorchs_modules_name_the_subgraphs_of_an_exported_program() -> None:
    found = layers(exported_program())
    assert [layer for layer, operators in found if "conv2d" in operators] == ["stem.0", "head"]


def test_layer_names_are_one_short_line() -> None:
    assert readable("a\x1b[31m\nb\t c\ud800") == "a\ufffd[31m b c?"
    assert readable(b"conv\xff1") == "conv\ufffd1"
    path = "/".join(f"layer{number}" for number in range(100))
    short = readable(path)
    assert (len(short), short[0]) == (MAX_CHARS, "…")
    assert path.endswith(short[1:])
    assert readable(short) == short
