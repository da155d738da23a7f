"""Maxima and minima propagate NaN, with and without schedules; a constant bound costs nothing more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from compiler import fallback
from compiler.codegen.compilation import compile_scheduled
from compiler.codegen.pipeline import PIPELINE, UNTUNED
from tests.cuda_emulator.emulator import compile_batch, host_code
from tests.gpu_programs import TARGET as GPU_TARGET
from tests.marks import slow_lane_except
from tests.workloads import module

ROWS, COLUMNS = 16, 64
TYPES = ("float32", "float16", "bfloat16", "float64")
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})


def _workload(name: str, dtype: str) -> tvm.IRModule:
    data = te.placeholder((ROWS, COLUMNS), dtype, name="data")
    zero, six = (tirx.const(number, dtype) for number in (0, 6))
    results = {
        "relu": lambda: topi.nn.relu(data),
        "clip": lambda: te.compute(data.shape, lambda *at: tirx.Min(tirx.Max(data(*at), zero), six)),
        "max": lambda: te.compute(data.shape, lambda i, j: tirx.Max(data[i, j], data[ROWS - 1 - i, j])),
        "min": lambda: te.compute(data.shape, lambda i, j: tirx.Min(data[i, j], data[ROWS - 1 - i, j])),
        "reduced max": lambda: topi.max(data, axis=1),
        "reduced min": lambda: topi.min(data, axis=0),
    }
    return module([data, results[name]()])


def _expected(name: str, data: NDArray[Any]) -> NDArray[Any]:
    return {
        "relu": lambda: np.maximum(data, np.zeros_like(data)),
        "clip": lambda: np.clip(data, np.zeros_like(data), np.full_like(data, 6)),
        "max": lambda: np.maximum(data, data[::-1]),
        "min": lambda: np.minimum(data, data[::-1]),
        "reduced max": lambda: data.max(axis=1),
        "reduced min": lambda: data.min(axis=0),
    }[name]()


def _data(dtype: str) -> NDArray[Any]:
    data = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)) * 4
    data[3, 0] = data[4, COLUMNS - 1] = data[5, 30] = np.nan
    data[6, 7], data[7, 8] = np.inf, -np.inf
    return data.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def _vectorized(workload: tvm.IRModule) -> tvm.IRModule:
    schedule = Schedule(workload)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    *_, last = schedule.get_loops(block)
    schedule.vectorize(schedule.split(last, [None, 16])[-1])
    return schedule.mod


@pytest.mark.parametrize("dtype", slow_lane_except(TYPES, "float32", "bfloat16", seconds=0.3))
@pytest.mark.parametrize("name", ["relu", "clip", "max", "min", "reduced max", "reduced min"])
def test_nan_is_the_extreme(name: str, dtype: str) -> None:
    data, workload = _data(dtype), _workload(name, dtype)
    wanted = _expected(name, data.astype(np.float64))
    modules = [(workload, UNTUNED), (fallback.schedule(workload, 1), PIPELINE)]
    if not name.startswith("reduced"):
        modules.append((_vectorized(workload), PIPELINE))
    for candidate, pipeline in modules:
        result = tvm.runtime.tensor(np.zeros(wanted.shape, data.dtype))
        target = tvm.target.Target("llvm")
        tvm.compile(candidate, target=target, tir_pipeline=pipeline)["main"](tvm.runtime.tensor(data), result)
        np.testing.assert_array_equal(result.numpy().astype(np.float64), wanted)


@pytest.mark.parametrize("dtype", slow_lane_except(["float32", "float16", "bfloat16"], "bfloat16"))
def test_nan_is_the_extreme_on_a_gpu(dtype: str, tmp_path: Path) -> None:
    """The emulator compiles the operators of a type together."""
    data, names = _data(dtype), ("clip", "max", "reduced max")
    kernels = []
    for name in names:
        scheduled = fallback.schedule_for_gpu(_workload(name, dtype), GPU_TARGET)
        library, _ = compile_scheduled(scheduled, GPU_TARGET)
        kernels.append((library.mod.imports[0].inspect_source(), host_code(scheduled, GPU_TARGET)))
    stored = np.dtype(np.uint16) if dtype == "bfloat16" else data.dtype
    for name, program in zip(names, compile_batch(kernels, tmp_path), strict=True):
        wanted = _expected(name, data.astype(np.float64))
        result = np.zeros(wanted.shape, stored)
        program.run([data.view(stored), result])
        np.testing.assert_array_equal(result.view(data.dtype).astype(np.float64), wanted, err_msg=name)


def _instructions(pipeline: str, workload: tvm.IRModule, target: tvm.target.Target) -> list[str]:
    built = tvm.compile(_vectorized(workload), target=target, tir_pipeline=pipeline)
    assembly = built.mod.inspect_source("asm")
    kinds = r"^\t(vmaxps|vminps|vcmp\w+|vblend\w+|fmax|fmin|fcm\w+|bsl|bif|bit)\b"
    return re.findall(kinds, assembly, re.MULTILINE)


@pytest.mark.parametrize("name", ["relu", "clip"])
def test_a_bound_needs_the_same_instructions_as_in_tvms_pipeline(name: str) -> None:
    workload = _workload(name, "float32")
    ours, tvms = (_instructions(pipeline, workload, CPU) for pipeline in (PIPELINE, "default"))
    assert ours
    assert sorted(ours) == sorted(tvms)


def test_aarch64_computes_the_extreme_in_one_instruction() -> None:
    arm = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]})
    found = _instructions(PIPELINE, _workload("max", "float32"), arm)
    assert set(found) == {"fmax"}
