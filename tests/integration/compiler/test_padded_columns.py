"""Matrix products whose width is not a multiple of the vector width are also tried padded."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from compiler.importing.model import read_onnx
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.onnx_models import Builder

DEVICE = detect_device(1)
ROWS, SUMMED, COLUMNS = 16, 8, 1031


def _model(left: tuple[int, ...], columns: int, *, is_constant: bool = True) -> bytes:
    """A product, with a shift and a rectifier."""
    builder = Builder()
    inputs = {"x": left}
    if not is_constant:
        inputs["w"] = (left[-1], columns)
    weight = builder.weight(left[-1], columns) if is_constant else "w"
    shifted = builder.op("Add", builder.op("MatMul", "x", weight), builder.weight(columns))
    return builder.model(inputs, {builder.op("Relu", shifted): None})


@pytest.mark.parametrize("left", [(ROWS, SUMMED), (2, ROWS, SUMMED)])
def test_padded_products_are_the_products(left: tuple[int, ...]) -> None:
    variants = VariantModel.of(read_onnx(_model(left, COLUMNS), {}), DEVICE.target)
    [task] = (task for task in variants.tasks() if task.variant)
    assert (task.variant, task.exact) == ("padded", True)
    assert f"{SUMMED}x1152" in task.name, "the next multiple of 128"
    data = np.random.default_rng(0).uniform(-1, 1, left).astype(np.float32)
    outputs = []
    for chosen in ([], [task.workload_hash]):
        built = relax.build(variants.choose(chosen), tvm.target.Target("llvm"))
        outputs.append(relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy())
    assert outputs[1].shape == (*left[:-1], COLUMNS)
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_model((ROWS, SUMMED), 1040), id="vectors divide the columns"),
        pytest.param(_model((ROWS, SUMMED), 1000), id="few columns"),
        pytest.param(_model((1, SUMMED), COLUMNS), id="one row"),
        pytest.param(_model((ROWS, SUMMED), COLUMNS, is_constant=False), id="no constant"),
    ],
)
def test_other_products_keep_their_columns(model: bytes) -> None:
    variants = VariantModel.of(read_onnx(model, {}), DEVICE.target)
    assert not [task for task in variants.tasks() if task.variant]


def test_the_columns_are_tiled_without_a_partial_tile() -> None:
    variants = VariantModel.of(read_onnx(_model((ROWS, SUMMED), COLUMNS), {}), DEVICE.target)
    [task] = (task for task in variants.tasks() if task.variant)
    dag = read_dag(from_json(task.module_json))
    for sketch in generate(dag, DEVICE):
        [tiled] = sketch.of_kind(StageKind.TILED)
        assert dag.node[tiled.node].axes[-2].extent == 1152
