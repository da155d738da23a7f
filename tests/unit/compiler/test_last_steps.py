"""Loops with a shorter last iteration have a condition only there, with shapes of any type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from compiler.codegen.compilation import pass_context
from compiler.codegen.last_steps import HINT, count_in_int32
from compiler.codegen.pipeline import PIPELINE
from compiler.tir_nodes import find_all
from tests.workloads import module

NATIVE = tvm.target.Target("llvm")
ROWS, COLUMNS, LANES = 3, 197, 32


def _maxima(dtype: str) -> tvm.IRModule:
    """m[i] = max(x[i, :]) by LANES partial results; the last step has 5."""
    rows, columns = (tirx.const(extent, dtype) for extent in (ROWS, COLUMNS))
    data = te.placeholder((rows, columns), name="data")
    k = te.reduce_axis((tirx.const(0, dtype), columns), name="k")
    made = module([data, te.compute((rows,), lambda i: te.max(data[i, k], axis=k), name="m")])
    schedule = Schedule(made, debug_mask="none")
    block = schedule.get_sblock("m")
    _, lanes = schedule.split(schedule.get_loops(block)[1], [None, LANES])
    partial = schedule.rfactor(lanes, 1)
    schedule.vectorize(schedule.get_loops(partial)[-1])
    schedule.annotate(schedule.get_loops(partial)[-2], HINT, 1)
    return schedule.mod


def _variables(condition: Any) -> set[str]:
    return {variable.name for variable in find_all(condition, tirx.Var)}


def _conditions(module: tvm.IRModule) -> int:
    """Return how many conditions in vectors, where they are evaluated lane by lane, depend on the step."""
    found: list[Any] = []

    @tvm.instrument.pass_instrument
    class Counting:
        def run_before_pass(self, module: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
            if info.name == "tirx.VectorizeLoop":
                for loop in find_all(module["main"].body, tirx.For):
                    if loop.kind == tirx.ForKind.VECTORIZED:
                        conditions = find_all(loop.body, tirx.IfThenElse)
                        found.extend(one for one in conditions if len(_variables(one.condition)) > 1)

    context = pass_context(NATIVE)
    with tvm.transform.PassContext(
        config=context.config, disabled_pass=context.disabled_pass, instruments=[Counting()]
    ):
        tvm.compile(module, target=NATIVE, tir_pipeline=PIPELINE)
    return len(found)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_only_the_last_step_has_a_condition(dtype: str) -> None:
    assert _conditions(count_in_int32(_maxima(dtype), NATIVE)) == 0


def test_without_the_pass_every_step_has_the_condition() -> None:
    """If this fails, TVM narrows hints itself, and the pass can be removed."""
    assert _conditions(_maxima("int64")) == 1


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_results_are_the_same(dtype: str) -> None:
    data = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros(ROWS, dtype="float32"))
    counted = count_in_int32(_maxima(dtype), NATIVE)
    tvm.compile(counted, target=NATIVE, tir_pipeline=PIPELINE)["main"](tvm.runtime.tensor(data), result)
    assert np.array_equal(result.numpy(), data.max(axis=1))


def test_other_loops_and_code_for_gpus_stay_as_they_are() -> None:
    hinted = _maxima("int64")
    plain = Schedule(hinted, debug_mask="none")
    plain.unannotate(plain.get_loops(plain.get_sblock("m_rf"))[-2], HINT)
    tvm.ir.assert_structural_equal(count_in_int32(plain.mod, NATIVE), plain.mod)
    assert count_in_int32(hinted, tvm.target.Target("cuda")).same_as(hinted)
