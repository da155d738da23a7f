"""Candidates for CUDA: building needs no GPU, running does."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from compiler.codegen.nvcc import last_reports
from compiler.lowering.trace import lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.packaging.library import KernelLibrary
from compiler.packaging.linker import MACHINES
from compiler.workload import to_json
from core.measurement import Measurement, Outcome
from tests.devices import GPU
from tests.gpu_programs import TARGET, draw
from tests.suite import cases

# The number of NVIDIA's GPUs in an ELF header.
CUDA_MACHINE = 190
CASE = cases("GMM")[0]
MODULE = to_json(CASE.module())
BUILDER = LocalBuilder(str(TARGET))


def trace() -> str:
    (program,) = draw(CASE, 1, np.random.default_rng(0))
    return lower(CASE.module(), program, GPU)


def starts(data: bytes, text: bytes) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(text), data)]


@pytest.fixture
def runner() -> LocalRunner:
    return LocalRunner(str(TARGET))


def test_a_candidate_is_built_without_a_gpu() -> None:
    built = BUILDER.build(MODULE, trace())
    assert isinstance(built, BuiltKernel)
    assert "__global__" in built.library.mod.imports[0].inspect_source()


def test_a_library_for_another_machine_has_machine_code_of_its_gpu() -> None:
    exported = BUILDER.export(MODULE, trace())
    assert isinstance(exported, KernelLibrary)
    assert last_reports()["main_kernel"].registers > 0
    machines = [exported.data[at + 18] for at in starts(exported.data, b"\x7fELF")]
    assert machines == [MACHINES["x86_64"], CUDA_MACHINE]


def test_loops_without_threads_are_refused() -> None:
    refused = BUILDER.build(MODULE, "[[],[]]")
    assert isinstance(refused, Measurement)
    assert refused.outcome is Outcome.BUILD_ERROR
    assert refused.error == "nothing is bound to the GPU's threads"


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a GPU")
def test_without_a_gpu_running_is_an_error(runner: LocalRunner) -> None:
    built = BUILDER.build(MODULE, trace())
    assert isinstance(built, BuiltKernel)
    assert runner.run(built, MODULE, ()).outcome is Outcome.DEVICE_LOST


@pytest.mark.skipif(not tvm.cuda(0).exist, reason="there is no GPU")
def test_a_gpu_runs_it(runner: LocalRunner) -> None:
    runner.self_check()
    built = BUILDER.build(MODULE, trace())
    assert isinstance(built, BuiltKernel)
    assert runner.run(built, MODULE, ()).outcome is Outcome.OK
