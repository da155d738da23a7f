"""Time candidates of both engines with the worker's runner, so that all are measured alike.

Each engine's candidates are compiled as the engine compiles them: ours by our builder, MetaSchedule's by
TVM's default pipeline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tvm

from benchmarks.timing.interleaved import Block
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.target import parse_target
from compiler.workload import to_json
from core.device import Device
from core.measurement import Measurement, Outcome


@dataclass(frozen=True)
class Candidate:
    """A module as JSON and the trace that schedules it; no trace when the module is scheduled already."""

    module_json: str
    trace: str | None

    @classmethod
    def scheduled(cls, module: tvm.IRModule) -> Candidate:
        """Return a candidate for a module that another engine has scheduled."""
        return cls(to_json(module), None)


@dataclass(frozen=True)
class Trial:
    """One trial of a search: `run_s` was known `at_s` seconds after its start, inf when the trial failed.

    The candidate is None when its program could not be lowered.
    """

    candidate: Candidate | None
    run_s: float
    at_s: float


# Candidates, None where lowering failed, with their seconds when they were first timed.
TimedCandidates = Sequence[tuple[Candidate | None, float]]


def fastest(timed: TimedCandidates, count: int) -> list[Candidate]:
    """Return at most `count` different candidates that ran, fastest first."""
    ranked = sorted((pair for pair in timed if math.isfinite(pair[1])), key=lambda pair: pair[1])
    return list(dict.fromkeys(candidate for candidate, _ in ranked if candidate is not None))[:count]


class ProgramMeasurer:
    """Builds, verifies and times candidates of one workload, with warm caches, on the device's cores."""

    def __init__(self, module: tvm.IRModule, device: Device, builders: int | None = None) -> None:
        """Build on as many threads at a time as the device has cores, unless `builders` says how many."""
        self._builder = LocalBuilder(device.target)
        self._runner = LocalRunner(device.target)
        self._target = parse_target(device.target)
        self._workload = to_json(module)
        self._builders = ThreadPoolExecutor(builders or device.cores)

    def build(self, candidates: Sequence[Candidate | None]) -> list[BuiltKernel | Measurement]:
        """Build as many candidates at a time as there are cores; None counts as a build error."""
        return list(self._builders.map(self._build, candidates))

    def run(self, built: BuiltKernel | Measurement, best_s: float | None = None) -> Measurement:
        """Time a built candidate; return a failed build unchanged.

        A candidate is timed longer the closer it comes to `best_s`; without it, all are timed alike.
        """
        if isinstance(built, Measurement):
            return built
        return self._runner.run(built, self._workload, (), best_s)

    def measure(self, candidates: Sequence[Candidate | None]) -> list[Measurement]:
        """Build all candidates, then time them one by one."""
        return [self.run(built) for built in self.build(candidates)]

    def timed(self, candidates: Sequence[Candidate | None], best_s: float = math.inf) -> Iterator[float]:
        """Time candidates as a job's trials are timed when `best_s` is the best so far.

        Yield the seconds of each as soon as they are known, inf for a failure.
        """
        for built in self.build(candidates):
            secs = seconds(self.run(built, best_s if math.isfinite(best_s) else None))
            best_s = min(best_s, secs)
            yield secs

    def _build(self, candidate: Candidate | None) -> BuiltKernel | Measurement:
        if candidate is None:
            return Measurement(Outcome.BUILD_ERROR, error="not a schedule")
        if candidate.trace is None:
            return self._build_plainly(candidate.module_json)
        return self._builder.build(candidate.module_json, candidate.trace)

    def _build_plainly(self, module_json: str) -> BuiltKernel | Measurement:
        """Compile as MetaSchedule's builder does, in this process, a module that our own process made."""
        start_s = time.perf_counter()
        try:
            with self._target:  # nvcc is called for it
                library = tvm.compile(tvm.ir.load_json(module_json), target=self._target)
            function = library["main"]  # emits the machine code
        except Exception as error:  # TVM raises classes that its C++ side names
            return Measurement(Outcome.BUILD_ERROR, error=str(error))
        return BuiltKernel(library, function, time.perf_counter() - start_s)


@dataclass(frozen=True)
class Finalist:
    """A built candidate as a contestant; with `best_s`, it is timed as a search with that best times it."""

    measurer: ProgramMeasurer
    built: BuiltKernel
    best_s: float | None = None

    def time_block(self, _block: Block) -> Sequence[float]:
        """Return as many repeats as the runner chooses. Raises RuntimeError when the candidate fails."""
        measurement = self.measurer.run(self.built, self.best_s)
        if measurement.outcome is not Outcome.OK:
            raise RuntimeError(measurement.error)
        return measurement.run_s


def seconds(measurement: Measurement) -> float:
    """Return the latency in seconds, inf for a failure."""
    return measurement.latency_s if measurement.outcome is Outcome.OK else math.inf
