"""Matrix products and convolutions with long sums that are split into parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

from compiler.importing.model import read_onnx
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.variants.split_k import split_convolution, split_product
from compiler.workload import from_json
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.devices import GPU
from tests.gpu_programs import Failure, compiled, draw, failures
from tests.marks import slow_lane_except
from tests.onnx_models import Builder
from tests.suite import Case

PARTS = 4


class SplitProduct(Case):
    """A matrix product in parts."""

    def module(self) -> tvm.IRModule:
        rows, columns, summed = self.shape
        left, right = te.placeholder((rows, summed), name="A"), te.placeholder((summed, columns), name="B")
        function = te.create_prim_func([left, right, split_product(left, right, PARTS)])
        return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


class SplitConvolution(Case):
    """A convolution in parts: height, width, inputs, outputs, kernel, stride, padding."""

    def module(self) -> tvm.IRModule:
        height, width, inputs, outputs, kernel, stride, padding = self.shape
        data = te.placeholder((1, height, width, inputs), name="data")
        weight = te.placeholder((kernel, kernel, inputs, outputs), name="weight")
        convolution = split_convolution(data, weight, [stride] * 2, [padding] * 4, [1, 1], PARTS)
        function = te.create_prim_func([data, weight, convolution])
        return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _model(left: tuple[int, ...], right: tuple[int, ...]) -> bytes:
    builder = Builder()
    y = builder.op("Relu", builder.op("MatMul", "x", builder.weight(*right)))
    return builder.model({"x": left}, {y: None})


@pytest.mark.parametrize(
    ("left", "right"), [((8, 256), (256, 12)), ((2, 8, 256), (256, 12)), ((2, 8, 256), (2, 256, 12))]
)
def test_parts_add_up_to_the_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    _compare(_model(left, right), left)


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        pytest.param((12, 32, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 1]}, id="strides and padding"),
        pytest.param((12, 64, 3, 2), {"pads": [2, 0, 1, 1], "dilations": [2, 1]}, id="dilated, one-sided"),
        pytest.param((4, 256, 1, 1), {}, id="1x1"),
    ],
)
def test_parts_add_up_to_the_convolution(weight: tuple[int, ...], attributes: dict[str, list[int]]) -> None:
    shape = (2, weight[1], 5, 4)
    _compare(_convolution(shape, weight, **attributes), shape)


def _convolution(data: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> bytes:
    builder = Builder()
    y = builder.op("Relu", builder.op("Conv", "x", builder.weight(*weight), **attributes))
    return builder.model({"x": data}, {y: None})


def _compare(model: bytes, shape: tuple[int, ...]) -> None:
    """Compare what a model computes with and without its only variant, split_k."""
    variants = VariantModel.of(read_onnx(model, {}), GPU.target)
    [task] = (task for task in variants.tasks() if task.variant == f"split_k_{PARTS}")
    assert task.exact
    data = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    outputs = []
    for chosen in ([], [task.workload_hash]):
        module = variants.choose(chosen)
        machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
        outputs.append(machine["main"](tvm.runtime.tensor(data)).numpy())
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("data", "weight", "attributes"),
    [
        pytest.param((1, 8, 5, 5), (12, 8, 3, 3), {}, id="a short sum"),
        pytest.param((1, 128, 28, 28), (128, 128, 3, 3), {"pads": [1] * 4}, id="many results"),
        pytest.param((1, 66, 5, 5), (4, 66, 3, 3), {}, id="no equal parts"),
        pytest.param((1, 64, 5, 5), (8, 32, 3, 3), {"group": 2}, id="groups"),
    ],
)
def test_other_convolutions_stay_whole(
    data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    model = read_onnx(_convolution(data, weight, **attributes), {})
    variants = {task.variant for task in VariantModel.of(model, GPU.target).tasks() if task.variant}
    assert not any(name.startswith("split_k") for name in variants)


@pytest.mark.parametrize(
    ("left", "right", "target"),
    [
        pytest.param((64, 64), (64, 64), GPU.target, id="a short sum"),
        pytest.param((8, 250), (250, 12), GPU.target, id="no equal parts"),
        pytest.param((8, 256), (256, 12), detect_device(1).target, id="a CPU"),
    ],
)
def test_other_products_stay_whole(left: tuple[int, ...], right: tuple[int, ...], target: str) -> None:
    variants = VariantModel.of(read_onnx(_model(left, right), {}), target)
    assert not [task for task in variants.tasks() if task.variant]


def test_the_parts_are_tiled_and_added_up_by_a_kernel_of_their_own() -> None:
    model = read_onnx(_model((8, 256), (256, 12)), {})
    [task] = (task for task in VariantModel.of(model, GPU.target).tasks() if task.variant)
    [sketch] = generate(read_dag(from_json(task.module_json)), GPU)
    assert sketch.of_kind(StageKind.TILED)
    assert sketch.of_kind(StageKind.THREADS)


@pytest.mark.parametrize(
    "case",
    slow_lane_except(
        [SplitProduct("GMM", (16, 32, 256)), SplitConvolution("C2D", (5, 4, 32, 16, 3, 2, 1))],
        SplitProduct("GMM", (16, 32, 256)),
    ),
    ids=str,
)
def test_programs_of_split_sums_agree_with_the_reference(case: Case) -> None:
    results = [compiled(case, program) for program in draw(case, 2, np.random.default_rng(0))]
    wrong = [one for one in results if isinstance(one, Failure)]
    wrong += failures([one for one in results if not isinstance(one, Failure)])
    assert not wrong, "\n\n".join(map(str, wrong))
