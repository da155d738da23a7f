"""The suite's operators compute what their numpy references say, and are TVM's own where TVM has them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS, create_te_workload

from benchmarks.suite import OPERATORS
from compiler import fallback
from compiler.target import detect_device, parse_target
from tests.marks import slow_lane_except
from tests.suite import CASES, REFERENCES, SHAPES, Case

# LLVM's higher levels take twice as long, and compute the same.
TARGET = tvm.target.Target({**parse_target(detect_device().target).export(), "opt-level": 1})
IN_TVM = {"ConvLayer": "CBR", "softmax": "SFM"}


def _run(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the workload's output under the fallback schedule, and the reference's."""
    *inputs, output = case.arguments()
    placed = [tvm.runtime.tensor(array, device=tvm.cpu()) for array in (*inputs, output)]
    tvm.compile(fallback.schedule(case.module()), target=TARGET)["main"](*placed)
    return placed[-1].numpy(), case.reference(inputs)


@pytest.mark.parametrize("case", slow_lane_except(CASES, *CASES[::4], seconds=0.2), ids=str)
def test_the_reference_agrees_with_the_workload(case: Case) -> None:
    actual, expected = _run(case)
    assert actual.shape == expected.shape
    assert np.isfinite(expected).all()
    assert not case.difference(actual, expected)


def test_a_wrong_result_differs() -> None:
    case = Case("GMM", (16, 32, 64))
    actual, expected = _run(case)
    wrong = actual.copy()
    wrong.flat[5] += 0.01
    assert not case.difference(actual, expected)
    assert "1 of 512 values differ, by up to 0.01" in case.difference(wrong, expected)


def test_every_operator_has_a_reference_and_shapes() -> None:
    assert set(OPERATORS) == set(REFERENCES) == set(SHAPES)


@pytest.mark.parametrize("name", [name for name in OPERATORS if IN_TVM.get(name, name) in CONFIGS])
def test_paper_shapes_equal_metaschedules_test_workloads(name: str) -> None:
    for number, shape in enumerate(OPERATORS[name].shapes):
        theirs = create_te_workload(IN_TVM.get(name, name), number).with_attr("tirx.noalias", True)
        assert tvm_ffi.structural_equal(OPERATORS[name].module(shape)["main"], theirs)


@pytest.mark.parametrize("name", OPERATORS)
def test_benchmarks_take_one_of_the_four_shapes(name: str) -> None:
    assert OPERATORS[name].benchmark in OPERATORS[name].shapes


def test_an_unsupported_element_type_of_an_operator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"NRM comes in float32, not in int8"):
        OPERATORS["NRM"].module((16, 32), dtype="int8")
