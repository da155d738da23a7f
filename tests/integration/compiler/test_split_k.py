"""Matrix products whose long sums are computed in parts."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te

from compiler.importing.model import read_onnx
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.variants.split_k import split_product
from compiler.workload import from_json
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.devices import GPU
from tests.gpu_programs import Failure, compiled, draw, failures
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


def _model(left: tuple[int, ...], right: tuple[int, ...]) -> bytes:
    builder = Builder()
    y = builder.op("Relu", builder.op("MatMul", "x", builder.weight(*right)))
    return builder.model({"x": left}, {y: None})


@pytest.mark.parametrize(
    ("left", "right"), [((8, 256), (256, 12)), ((2, 8, 256), (256, 12)), ((2, 8, 256), (2, 256, 12))]
)
def test_parts_add_up_to_the_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    model = read_onnx(_model(left, right), {})
    variants = VariantModel.of(model, GPU.target)
    [task] = (task for task in variants.tasks() if task.variant)
    assert (task.variant, task.exact) == (f"split_k_{PARTS}", True)
    data = np.random.default_rng(0).uniform(-1, 1, left).astype(np.float32)
    outputs = []
    for chosen in ([], [task.workload_hash]):
        module = variants.choose(chosen)
        machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
        outputs.append(machine["main"](tvm.runtime.tensor(data)).numpy())
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


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
    assert sketch.placed(StageKind.TILED)
    assert sketch.placed(StageKind.THREADS)


def test_programs_of_parts_compute_what_the_reference_does() -> None:
    case = SplitProduct("GMM", (16, 32, 256))
    results = [compiled(case, program) for program in draw(case, 2, np.random.default_rng(0))]
    wrong = [one for one in results if isinstance(one, Failure)]
    wrong += failures([one for one in results if not isinstance(one, Failure)])
    assert not wrong, "\n\n".join(map(str, wrong))
