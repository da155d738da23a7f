"""Partial results are summed as trees, and other code is unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from compiler.codegen.row_sums import LENGTHS, add_as_trees
from compiler.tir_nodes import find_all
from tests.workloads import module

NATIVE = tvm.target.Target("llvm")
ROWS = 5
REDUCERS: dict[str, tuple[Any, Any]] = {
    "sum": (te.sum, np.sum),
    "max": (te.max, np.max),
    "min": (te.min, np.min),
    "prod": (te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod"), np.prod),
}


def _partial(reducer: str, lanes: int, steps: int = 3) -> tvm.IRModule:
    """r[i] = reduce(x[i, :]) by `lanes` partial results, their initial values set ahead."""
    data = te.placeholder((ROWS, steps * lanes), name="data")
    k = te.reduce_axis((0, steps * lanes), name="k")
    made = module([data, te.compute((ROWS,), lambda i: REDUCERS[reducer][0](data[i, k], axis=k), name="r")])
    schedule = Schedule(made)
    block = schedule.get_sblock("r")
    _, along = schedule.get_loops(block)
    _, inner = schedule.split(along, [steps, lanes])
    schedule.rfactor(inner, 1)
    schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    return schedule.mod


def _extents(scheduled: tvm.IRModule) -> list[int]:
    return [int(loop.extent) for loop in find_all(scheduled["main"].body, tirx.For)]


def _computed(scheduled: tvm.IRModule, data: np.ndarray) -> np.ndarray:
    result = tvm.runtime.tensor(np.zeros(ROWS, dtype="float32"))
    tvm.compile(scheduled, target=NATIVE)["main"](tvm.runtime.tensor(data), result)
    return result.numpy()


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("lanes", LENGTHS)
def test_a_tree_gives_the_same_result(reducer: str, lanes: int) -> None:
    scheduled = _partial(reducer, lanes)
    data = np.random.default_rng(0).uniform(0.8, 1.2, (ROWS, 3 * lanes)).astype("float32")
    expected = REDUCERS[reducer][1](data.astype("float64"), axis=1)
    assert np.allclose(_computed(add_as_trees(scheduled, NATIVE), data), expected, rtol=1e-5)


def test_only_the_loop_over_partial_results_becomes_a_tree() -> None:
    scheduled = _partial("sum", 4)
    before, after = _extents(scheduled), _extents(add_as_trees(scheduled, NATIVE))
    assert sorted(before) == [3, 4, 4, ROWS, ROWS]
    assert sorted(after) == [1, 3, 4, ROWS, ROWS]


@pytest.mark.parametrize("lanes", [3, 24, 2 * LENGTHS[-1]])
def test_odd_and_long_rows_stay_loops(lanes: int) -> None:
    scheduled = _partial("sum", lanes)
    tvm.ir.assert_structural_equal(add_as_trees(scheduled, NATIVE), scheduled)


def test_a_sum_that_sets_its_own_initial_value_stays_a_loop() -> None:
    data = te.placeholder((ROWS, 4), name="data")
    k = te.reduce_axis((0, 4), name="k")
    plain = module([data, te.compute((ROWS,), lambda i: te.sum(data[i, k], axis=k), name="r")])
    tvm.ir.assert_structural_equal(add_as_trees(plain, NATIVE), plain)


def test_a_row_of_results_is_not_added_up() -> None:
    """The innermost loop of a pooling is over channels, each with a result of its own."""
    data = te.placeholder((ROWS, 3, 8), name="data")
    k = te.reduce_axis((0, 3), name="k")
    pooled = te.compute((ROWS, 8), lambda i, c: te.max(data[i, k, c], axis=k), name="r")
    schedule = Schedule(module([data, pooled]))
    block = schedule.get_sblock("r")
    _, channels, along = schedule.get_loops(block)
    schedule.reorder(along, channels)
    schedule.decompose_reduction(block, along)
    tvm.ir.assert_structural_equal(add_as_trees(schedule.mod, NATIVE), schedule.mod)


def test_code_for_gpus_is_unchanged() -> None:
    scheduled = _partial("sum", 4)
    assert add_as_trees(scheduled, tvm.target.Target("cuda")).same_as(scheduled)
