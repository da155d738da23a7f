"""Vectorized loops store one bfloat16 in all lanes, and round by one instruction."""

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
from compiler.target import detect_device, parse_target
from tests.workloads import module

DATA = np.random.default_rng(0).standard_normal((1, 4, 4, 16)).astype(ml_dtypes.bfloat16)


DEVICE = detect_device(1)


@pytest.mark.skipif("avx512_bf16" not in DEVICE.features, reason="this CPU doesn't round to bfloat16")
def test_vectors_are_rounded_by_one_instruction() -> None:
    floats = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 3.4e38], np.float32)
    values = np.concatenate([floats, np.random.default_rng(0).standard_normal(56, np.float32)])
    data = te.placeholder((64,), "float32", name="data")
    schedule = Schedule(module([data, te.compute((64,), lambda i: data[i].astype("bfloat16"), name="cast")]))
    _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("cast"))[0], [None, 16])
    schedule.vectorize(inner)
    built = tvm.compile(schedule.mod, target=parse_target(DEVICE.target), tir_pipeline=PIPELINE)
    assert "vcvtneps2bf16" in built.mod.inspect_source("asm")
    result = tvm.runtime.tensor(np.zeros(64, ml_dtypes.bfloat16))
    built["main"](tvm.runtime.tensor(values), result)
    found = result.numpy().astype(np.float32)
    np.testing.assert_array_equal(found, values.astype(ml_dtypes.bfloat16).astype(np.float32))


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
