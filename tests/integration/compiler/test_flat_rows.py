"""Products of images of 7x7 pixels are also tried with one axis of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from compiler.importing.model import ExtractedTask, read_onnx
from compiler.lowering.trace import lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from core.measurement import Outcome
from search.cost.model import CostModel
from search.policy import TuneContext, propose
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.onnx_models import Builder

NATIVE = detect_device(1)
DEVICE = detect_device(1, sorted({"avx512f"} & set(NATIVE.features)))
INPUTS, OUTPUTS = 32, 48
pytestmark = pytest.mark.skipif("sse4_2" not in NATIVE.features, reason="the variant is for x86")


def _convolution(
    height: int = 7, width: int = 7, *, kernel: int = 1, outputs: int = OUTPUTS, **attributes: Any
) -> bytes:
    """A convolution with a shift and a rectifier."""
    builder = Builder()
    weight, shift = builder.weight(outputs, INPUTS, kernel, kernel), builder.weight(outputs)
    result = builder.op("Relu", builder.op("Conv", "x", weight, shift, **attributes))
    return builder.model({"x": (1, INPUTS, height, width)}, {result: None})


def _product(*rows: int) -> bytes:
    """A product with a shift and a rectifier."""
    builder = Builder()
    product = builder.op("MatMul", "x", builder.weight(INPUTS, OUTPUTS))
    return builder.model(
        {"x": (*rows, INPUTS)},
        {builder.op("Relu", builder.op("Add", product, builder.weight(OUTPUTS))): None},
    )


def _flat_tasks(variants: VariantModel) -> list[ExtractedTask]:
    return [task for task in variants.tasks() if task.variant == "flat"]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(_convolution(), (1, INPUTS, 7, 7), id="1x1"),
        pytest.param(_convolution(kernel=3, pads=[2, 1, 0, 1]), (1, INPUTS, 7, 7), id="3x3, padded"),
        pytest.param(_convolution(14, 14, kernel=2, strides=[2, 2]), (1, INPUTS, 14, 14), id="stride"),
        pytest.param(_product(1, 7, 7), (1, 7, 7, INPUTS), id="product"),
        pytest.param(_product(2, 7, 11), (2, 7, 11, INPUTS), id="three axes"),
    ],
)
def test_flat_products_are_the_products(model: bytes, shape: tuple[int, ...]) -> None:
    variants = VariantModel.of(read_onnx(model, {}), DEVICE.target)
    [task] = _flat_tasks(variants)
    assert task.exact
    data = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    outputs = []
    for chosen in ([], [task.workload_hash]):
        built = relax.build(variants.choose(chosen), tvm.target.Target("llvm"))
        outputs.append(relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy())
    assert np.any(outputs[0] > 0)
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_convolution(6, 7), id="tiles of six rows"),
        pytest.param(_convolution(1, 49), id="one axis"),
        pytest.param(_convolution(14, 14), id="tiles of two rows of two pixels"),
        pytest.param(_convolution(kernel=3, pads=[2, 2, 2, 2], dilations=[2, 2]), id="dilated"),
        pytest.param(_convolution(outputs=16), id="few channels"),
    ],
)
def test_other_products_keep_their_axes(model: bytes) -> None:
    assert not _flat_tasks(VariantModel.of(read_onnx(model, {}), DEVICE.target))


@pytest.mark.parametrize(
    "target",
    [
        '{"kind":"llvm","mcpu":"skylake-avx512","mtriple":"x86_64-linux-gnu"}',
        '{"kind":"llvm","mcpu":"cortex-a76","mtriple":"aarch64-linux-gnu"}',
    ],
)
def test_with_32_registers_tiles_of_seven_rows_are_good(target: str) -> None:
    assert not _flat_tasks(VariantModel.of(read_onnx(_convolution(), {}), target))


def test_partial_tiles_of_flat_rows_are_right() -> None:
    [task] = _flat_tasks(VariantModel.of(read_onnx(_convolution(), {}), DEVICE.target))
    module = from_json(task.module_json)
    dag = read_dag(module)
    context = TuneContext(dag, generate(dag, DEVICE), DEVICE)
    found = [each.program for each in propose(context, CostModel(), [], 8, np.random.default_rng(0))]
    partial = [program for program in found if _rows_of_tile(program) not in (1, 7, 49)]
    assert partial, "the estimate prefers them"
    builder, runner = LocalBuilder(DEVICE.target), LocalRunner(DEVICE.target)
    for program in partial[:2]:
        built = builder.build(task.module_json, lower(module, program, DEVICE))
        assert isinstance(built, BuiltKernel), built.error
        assert runner.run(built, task.module_json, task.constants).outcome is Outcome.OK


def _rows_of_tile(program: Any) -> int:
    [tiled] = program.sketch.of_kind(StageKind.TILED)
    return int(program.factors(tiled.node, 0)[-1])
