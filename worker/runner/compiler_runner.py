"""The real bench: the compiler's, one per target. Only the child imports this, because it imports TVM."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from threading import Barrier

from compiler.measuring.builder import BuiltKernel, LocalBuilder, check_export
from compiler.measuring.calibration import calibrate
from compiler.measuring.cores import bind_thread_pool
from compiler.measuring.runner import LocalRunner
from compiler.packaging.library import KernelLibrary
from compiler.packaging.linker import MACHINES
from compiler.target import detect_device
from core.device import Device
from core.measurement import Measurement, Outcome
from core.profile import Profile
from worker.runner.interface import BuildRequest, Exported, Machines, Notify


class CompilerRunner:
    """Measures on this machine's CPU with TVM, or exports for other machines. `TVM_NUM_THREADS` in the
    environment must equal `threads`. Belongs to the thread that made it."""

    def __init__(self, threads: int, without: Sequence[str] = ()) -> None:
        """Raises FeatureError when this machine has no instruction set that it shall do `without`."""
        bind_thread_pool(threads)
        self._device = detect_device(threads, without)
        self._builder = lru_cache(maxsize=4)(LocalBuilder)
        self._runner = lru_cache(maxsize=4)(LocalRunner)
        self._builders = ThreadPoolExecutor(threads, thread_name_prefix="build")
        self._built: dict[int, tuple[BuildRequest, BuiltKernel | KernelLibrary | Measurement]] = {}

    def check(self) -> Device:
        """Raises RuntimeError when the probe kernel computes a wrong result."""
        self._runner(self._device.target).self_check()
        self._start_builders()
        return self._device

    def calibrate(self, budget_s: float) -> Profile:
        return calibrate(self._device, budget_s)

    def build(self, subjects: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        def build(number: int) -> bool:
            begun(number)
            subject = subjects[number]
            built = self._build(subject)
            self._built[number] = subject, built
            ended(number)
            return isinstance(built, Measurement)

        refusals = self._builders.map(build, subjects)
        to_run = [subject for subject in subjects.values() if not subject.export]
        workloads = dict.fromkeys((subject.target, subject.module_json) for subject in to_run)
        for _ in self._builders.map(self._prepare, workloads):
            pass
        return [number for number, refused in zip(subjects, refusals, strict=True) if refused]

    def machines(self) -> Machines:
        """This machine first. Trying fills the linkers' caches, which takes longer than a candidate may."""
        problems = {machine: _problem(machine) for machine in sorted(MACHINES, key=_is_another)}
        names = tuple(machine for machine, problem in problems.items() if not problem)
        return Machines(names, tuple(filter(None, problems.values())))

    def run(self, number: int, best_s: float | None) -> Measurement:
        subject, built = self._built.pop(number)
        if isinstance(built, Measurement):
            return built
        if isinstance(built, KernelLibrary):
            return Measurement(Outcome.RUN_ERROR, error="it was built for another machine")
        return self._runner(subject.target).run(built, subject.module_json, subject.constants, best_s)

    def export(self, number: int) -> Exported | Measurement:
        _, built = self._built.pop(number)
        if isinstance(built, KernelLibrary):
            return Exported(built.pack(), built.build_secs)
        assert isinstance(built, Measurement), "only what is built to be exported is asked for so"
        return built

    def measure_module(self, artifact: bytes, compare: bool) -> Measurement:
        return self._runner(self._device.target).measure_module(artifact, compare)

    def _start_builders(self) -> None:
        """Their stacks and heaps shall not count as what candidates made this process grow by."""
        all_there = Barrier(self._device.cores)
        for _ in self._builders.map(lambda _: all_there.wait(), range(self._device.cores)):
            pass

    def _prepare(self, workload: tuple[str, str]) -> None:
        target, module_json = workload
        with contextlib.suppress(ValueError):
            self._runner(target).prepare(module_json)

    def _build(self, subject: BuildRequest) -> BuiltKernel | KernelLibrary | Measurement:
        try:
            if subject.library is not None:
                return self._runner(subject.target).load(Path(subject.library).read_bytes())
            builder = self._builder(subject.target)
            if subject.export:
                return builder.export(subject.module_json, subject.trace)
            return builder.build(subject.module_json, subject.trace)
        except ValueError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))


def _problem(machine: str) -> str:
    """Why nothing can be built for a machine; empty when it can."""
    try:
        check_export(machine)
    except Exception as error:  # TVM raises whatever class its C++ side names
        return str(error)[-500:]
    return ""


def _is_another(machine: str) -> bool:
    return machine != platform.machine()
