"""The real bench: the compiler's, one per target. Only the child imports this, because it imports TVM."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier

import compiler.bench
from compiler.bench import Built
from compiler.target import probe
from search.device import Device
from search.measurement import Measurement, Outcome
from worker.bench import Note, Subject


class CompilerBench:
    """Measures on this machine's CPU with TVM. `TVM_NUM_THREADS` in the environment must equal `threads`."""

    def __init__(self, threads: int) -> None:
        self._device = probe(threads)
        self._bench = lru_cache(maxsize=4)(compiler.bench.Bench)
        self._builders = ThreadPoolExecutor(threads, thread_name_prefix="build")
        self._built: dict[int, tuple[Subject, Built | Measurement]] = {}

    def check(self) -> Device:
        """Raises RuntimeError when the probe kernel computes a wrong result."""
        self._bench(self._device.target).self_check()
        self._start_builders()
        return self._device

    def build(self, subjects: Mapping[int, Subject], begun: Note, ended: Note) -> list[int]:
        def build(number: int) -> bool:
            begun(number)
            subject = subjects[number]
            built = self._build(subject)
            self._built[number] = subject, built
            ended(number)
            return isinstance(built, Measurement)

        refusals = self._builders.map(build, subjects)
        workloads = dict.fromkeys((subject.target, subject.module_json) for subject in subjects.values())
        for _ in self._builders.map(self._prepare, workloads):
            pass
        return [number for number, refused in zip(subjects, refusals, strict=True) if refused]

    def run(self, number: int, best_s: float | None) -> Measurement:
        subject, built = self._built.pop(number)
        if isinstance(built, Measurement):
            return built
        return self._bench(subject.target).run(built, subject.module_json, subject.constants, best_s)

    def measure_module(self, artifact: bytes) -> Measurement:
        return self._bench(self._device.target).measure_module(artifact)

    def _start_builders(self) -> None:
        """Their stacks and heaps shall not count as what candidates made this process grow by."""
        all_there = Barrier(self._device.cores)
        for _ in self._builders.map(lambda _: all_there.wait(), range(self._device.cores)):
            pass

    def _prepare(self, workload: tuple[str, str]) -> None:
        target, module_json = workload
        with contextlib.suppress(ValueError):
            self._bench(target).prepare(module_json)

    def _build(self, subject: Subject) -> Built | Measurement:
        try:
            return self._bench(subject.target).build(subject.module_json, subject.trace)
        except ValueError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))
