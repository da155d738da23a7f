"""On Arm, loops load the scalars of four steps as one vector, and multiply by its lanes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from compiler.codegen import lane_loads
from compiler.codegen.compilation import pass_context
from compiler.codegen.pipeline import PIPELINE
from tests.workloads import module

ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
NATIVE = tvm.target.Target("llvm")
COLUMNS = 8
LANE = re.compile(r"fmla.*\.s\[3\]")


def _product(rows: int, depth: int, dtype: str = "float32", inner: int = 0) -> tvm.IRModule:
    """A register tile of `rows` sums of vectors. `inner` steps of the reduction are a loop of their own."""
    data = te.placeholder((rows, depth), dtype, name="data")
    weight = te.placeholder((depth, COLUMNS), dtype, name="weight")
    k = te.reduce_axis((0, depth), "k")
    product = te.compute(
        (rows, COLUMNS), lambda i, j: te.sum(data[i, k] * weight[k, j], axis=k), name="product"
    )
    schedule = Schedule(module([data, weight, product]))
    block = schedule.get_sblock("product")
    i, j, reduction = schedule.get_loops(block)
    loops = schedule.split(reduction, [None, inner]) if inner else [reduction]
    schedule.reorder(*loops, i, j)
    schedule.unroll(i)
    schedule.vectorize(j)
    schedule.decompose_reduction(block, loops[0])
    return schedule.mod


def _compile(scheduled: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    with pass_context(target):
        return tvm.compile(scheduled, target=target, tir_pipeline=PIPELINE)


@pytest.mark.parametrize(
    ("rows", "depth", "inner", "joined"),
    [
        pytest.param(4, 64, 0, True, id="a loop of whole vectors"),
        pytest.param(4, 48, 12, True, id="an inner loop"),
        pytest.param(4, 66, 0, False, id="steps that don't fill a vector"),
        pytest.param(12, 64, 0, False, id="more values than registers"),
    ],
)
def test_arm_multiplies_by_lanes_if_the_values_fit_the_registers(
    rows: int, depth: int, inner: int, joined: bool
) -> None:
    assembly = _compile(_product(rows, depth, inner=inner), ARM).mod.inspect_source("s")
    assert bool(LANE.search(assembly)) == joined


def test_a_step_of_a_joined_loop_reads_its_own_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are compared on this machine, whose instructions have no lanes."""
    rng = np.random.default_rng(0)
    for dtype, depth, inner in (("float32", 64, 0), ("float32", 48, 12), ("float64", 64, 0)):
        data, weight = rng.uniform(size=(4, depth)), rng.uniform(size=(depth, COLUMNS))
        results = []
        for joined in (False, True):
            monkeypatch.setattr(lane_loads, "multiplies_by_lanes", lambda _, joined=joined: joined)
            built = _compile(_product(4, depth, dtype, inner), NATIVE)
            result = tvm.runtime.tensor(np.zeros((4, COLUMNS), dtype))
            built["main"](*(tvm.runtime.tensor(one.astype(dtype)) for one in (data, weight)), result)
            results.append(result.numpy())
        np.testing.assert_allclose(results[1], data @ weight, rtol=1e-5)
        np.testing.assert_array_equal(results[1], results[0])
