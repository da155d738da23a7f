"""A candidate's outputs are compared with the expected ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te

from compiler.measuring.operands import GARBAGE, Operands

SIZE = 6


def operands(outputs: Any, dtype: str = "float32") -> Operands:
    """Return the operands of a workload that computes `outputs` from any inputs."""
    data = te.placeholder((SIZE,), dtype, name="data")
    result = te.compute((SIZE,), lambda i: data[i] + data[i], name="result")
    function = te.create_prim_func([data, result])
    return Operands(function, tvm.cpu(), lambda _, output: output.copyfrom(np.array(outputs, dtype)))


def difference(given: Operands, outputs: Any, dtype: str = "float32") -> str:
    return given.difference([None, tvm.runtime.tensor(np.array(outputs, dtype))])


def test_arguments_are_the_same_every_time_and_outputs_garbage() -> None:
    made = operands(np.zeros(SIZE))
    first, output = made.place()
    before = first.numpy()
    output.copyfrom(np.ones(SIZE, "float32"))
    again, output = made.place()
    assert again.same_as(first)
    assert np.array_equal(output.numpy(), np.full(SIZE, GARBAGE, "float32"))
    first.copyfrom(np.zeros(SIZE, "float32"))
    made.forget()
    assert np.array_equal(made.place()[0].numpy(), before)


@pytest.mark.parametrize(
    "values", [np.arange(SIZE), [np.nan, np.inf, -np.inf, 1.0, 2.0, 3.0], np.zeros(SIZE)]
)
def test_the_expected_outputs_are_right(values: Any) -> None:
    assert difference(operands(values), values) == ""


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 5.1, GARBAGE])
@pytest.mark.parametrize("wanted", [5.0, np.inf, -np.inf, np.nan])
def test_one_wrong_value_is_noticed(wanted: float, wrong: float) -> None:
    values = np.arange(SIZE, dtype="float32")
    values[3] = wanted
    made = operands(values)
    assert difference(made, values) == ""
    if np.array_equal(wanted, wrong, equal_nan=True):
        return
    values[3] = wrong
    assert difference(made, values).startswith(f"output 1: 1 of {SIZE} values differ")


@pytest.mark.parametrize(("dtype", "step"), [("int32", 1), ("int8", 1), ("float64", 1e-4)])
def test_some_types_are_compared_more_strictly(dtype: str, step: float) -> None:
    values = np.array([100] * SIZE, dtype)
    made = operands(values, dtype)
    assert difference(made, values, dtype) == ""
    values[0] += step * 10
    assert difference(made, values, dtype) != ""


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=SIZE, max_size=SIZE), st.floats(-2e-3, 2e-3))
def test_values_may_differ_as_far_as_isclose_allows(values: list[float], off: float) -> None:
    """The tolerance is a thousandth of each value and a ten-thousandth of the largest one."""
    wanted = np.array(values, "float32")
    actual = (wanted + off * np.abs(wanted)).astype("float32")
    absolute = 1e-4 * float(np.max(np.abs(wanted)))
    error = np.abs(actual.astype(float) - wanted)
    bounds = 1e-3 * np.abs(wanted.astype(float)) + absolute
    if np.any(np.abs(error - bounds) < 1e-5 * bounds):
        return  # rounding errors decide
    assert (difference(operands(wanted), actual) == "") == bool((error <= bounds).all())
