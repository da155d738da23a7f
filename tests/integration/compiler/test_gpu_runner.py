"""Candidates for CUDA: building needs no GPU, running does."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from compiler.gpus import target_text
from compiler.lowering.trace import lower
from compiler.measuring import builder
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.packaging.elf import ARCHS
from compiler.packaging.library import KernelLibrary
from compiler.workload import to_json
from core.device import Gpu
from core.measurement import Measurement, Outcome, Resources
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
    assert built.resources is not None
    assert built.resources.registers > 0


def test_a_library_for_another_machine_has_machine_code_of_its_gpu() -> None:
    exported = BUILDER.export(MODULE, trace())
    assert isinstance(exported, KernelLibrary)
    assert exported.resources is not None
    assert KernelLibrary.unpack(exported.pack()).resources == exported.resources
    machines = [exported.data[at + 18] for at in starts(exported.data, b"\x7fELF")]
    assert machines == [ARCHS["x86_64"], CUDA_MACHINE]


def test_an_orin_gets_code_for_its_gpu_and_its_cores() -> None:
    host = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a78"}
    orin = json.loads(target_text(replace(Gpu(), capability=87), host))
    exported = LocalBuilder(json.dumps(orin)).export(MODULE, trace())
    assert isinstance(exported, KernelLibrary), exported
    cubins = starts(exported.data, b"\x7fELF")
    assert [exported.data[at + 18] for at in cubins] == [ARCHS["aarch64"], CUDA_MACHINE]
    # A byte of a cubin's flags names the architecture.
    assert 87 in exported.data[cubins[1] + 0x30 : cubins[1] + 0x34]


def test_the_first_nano_is_refused_because_cuda_cannot_compile_for_it() -> None:
    nano = LocalBuilder(target_text(replace(Gpu(), capability=53), {"kind": "llvm"}))
    refused = nano.build(MODULE, trace())
    assert isinstance(refused, Measurement)
    assert "CUDA 13 compiles nothing for sm_53" in refused.error


def test_a_program_that_spills_too_much_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for spilled, runs in ((4 * 64, True), (4 * 64 + 4, False)):
        resources = Resources(64, spilled)
        monkeypatch.setattr(builder, "last_resources", lambda found=resources: found)
        for built in (BUILDER.build(MODULE, trace()), BUILDER.export(MODULE, trace())):
            assert built.resources == resources
            assert isinstance(built, Measurement) is not runs
            if isinstance(built, Measurement):
                assert built.outcome is Outcome.SPILLED
                assert built.error.startswith("a thread spills 260 bytes to memory, more than its 64")


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
def test_a_gpu_runs_the_candidate(runner: LocalRunner) -> None:
    runner.self_check()
    built = BUILDER.build(MODULE, trace())
    assert isinstance(built, BuiltKernel)
    assert runner.run(built, MODULE, ()).outcome is Outcome.OK
