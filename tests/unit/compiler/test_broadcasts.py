"""Vectorized loops store one bfloat16 in all lanes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from compiler.codegen.pipeline import PIPELINE
from tests.workloads import module

DATA = np.random.default_rng(0).standard_normal((1, 4, 4, 16)).astype(ml_dtypes.bfloat16)


def _result(schedule: Schedule, shape: tuple[int, ...]) -> NDArray[Any]:
    built = tvm.compile(schedule.mod, target="llvm", tir_pipeline=PIPELINE)
    result = tvm.runtime.tensor(np.zeros(shape, DATA.dtype))
    built["main"](tvm.runtime.tensor(DATA), result)
    array: NDArray[Any] = result.numpy()
    return array


def test_the_largest_of_each_window() -> None:
    data = te.placeholder(DATA.shape, "bfloat16", name="data")
    pooled = topi.nn.pool2d(data, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max", layout="NHWC")
    schedule = Schedule(module([data, pooled]))
    update = schedule.get_sblock("pool_max")
    rows, _, _, channels, *window = schedule.get_loops(update)
    schedule.reorder(*window, channels)
    schedule.vectorize(channels)
    first = schedule.decompose_reduction(update, rows)
    schedule.vectorize(schedule.get_loops(first)[-1])
    expected = DATA.reshape(1, 2, 2, 2, 2, 16).max(axis=(2, 4))
    np.testing.assert_array_equal(_result(schedule, expected.shape), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda data, n, i, j: data[n, i, j, 0], np.repeat(DATA[..., :1], 16, axis=-1)),
        (lambda *_: tirx.const(1.0, "bfloat16"), np.ones_like(DATA)),
    ],
)
def test_a_value_of_its_own_for_each_row(value: Any, expected: NDArray[Any]) -> None:
    data = te.placeholder(DATA.shape, "bfloat16", name="data")
    filled = te.compute(DATA.shape, lambda n, i, j, c: value(data, n, i, j), name="filled")
    schedule = Schedule(module([data, filled]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("filled"))[-1])
    np.testing.assert_array_equal(_result(schedule, DATA.shape), expected)
