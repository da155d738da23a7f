"""Vectorized loops store one bfloat16 in all lanes, and round by one instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from compiler.codegen.pipeline import PIPELINE
from compiler.target import detect_device, parse_target
from tests.workloads import module

DATA = np.random.default_rng(0).standard_normal((1, 4, 4, 16)).astype(ml_dtypes.bfloat16)


DEVICE = detect_device(1)


VALUES = np.concatenate(
    [
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 3.4e38], np.float32),
        np.random.default_rng(0).standard_normal(56, np.float32),
    ]
)


def _rounded(value: Callable[[Any], Any], values: NDArray[np.float32]) -> tuple[NDArray[np.float32], str]:
    """Round `value` of each float32 to bfloat16 in vectors of 16. Return the results and the machine code."""
    data = te.placeholder((64,), "float32", name="data")
    schedule = Schedule(
        module([data, te.compute((64,), lambda i: value(data[i]).astype("bfloat16"), name="cast")])
    )
    _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("cast"))[0], [None, 16])
    schedule.vectorize(inner)
    built = tvm.compile(schedule.mod, target=parse_target(DEVICE.target), tir_pipeline=PIPELINE)
    result = tvm.runtime.tensor(np.zeros(64, ml_dtypes.bfloat16))
    built["main"](tvm.runtime.tensor(values), result)
    return result.numpy().astype(np.float32), str(built.mod.inspect_source("asm"))


@pytest.mark.skipif("avx512_bf16" not in DEVICE.features, reason="this CPU doesn't round to bfloat16")
def test_results_of_arithmetic_are_rounded_by_one_instruction() -> None:
    found, code = _rounded(lambda x: x * tirx.const(2.0, "float32"), (VALUES / 2).astype(np.float32))
    assert "vcvtneps2bf16" in code
    np.testing.assert_array_equal(found, VALUES.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_copies_keep_subnormal_numbers() -> None:
    """The instruction would take them as zero."""
    values = np.where(np.arange(64) % 2, VALUES, np.float32(1e-40))
    found, code = _rounded(lambda x: x, values)
    assert "vcvtneps2bf16" not in code
    np.testing.assert_array_equal(found, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def _result(schedule: Schedule, shape: tuple[int, ...]) -> NDArray[Any]:
    built = tvm.compile(schedule.mod, target="llvm", tir_pipeline=PIPELINE)
    result = tvm.runtime.tensor(np.zeros(shape, DATA.dtype))
    built["main"](tvm.runtime.tensor(DATA), result)
    array: NDArray[Any] = result.numpy()
    return array


def test_a_window_finds_the_largest_element() -> None:
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
def test_each_row_has_its_own_scale(value: Any, expected: NDArray[Any]) -> None:
    data = te.placeholder(DATA.shape, "bfloat16", name="data")
    filled = te.compute(DATA.shape, lambda n, i, j, c: value(data, n, i, j), name="filled")
    schedule = Schedule(module([data, filled]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("filled"))[-1])
    np.testing.assert_array_equal(_result(schedule, DATA.shape), expected)
