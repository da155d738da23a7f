"""Times candidates of whatever engine with our bench, so that all are measured alike.

Each engine's are compiled as the engine compiles them: ours by the bench, others by TVM's plain pipeline.
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
from compiler.workload import from_json, to_json
from core.device import Device
from core.measurement import Measurement, Outcome


@dataclass(frozen=True)
class Candidate:
    """A module as JSON text and the trace that schedules it; no trace when another engine has done so."""

    module_json: str
    trace: str | None

    @classmethod
    def scheduled(cls, module: tvm.IRModule) -> Candidate:
        """One that another engine has scheduled to the end."""
        return cls(to_json(module), None)


@dataclass(frozen=True)
class Trial:
    """One candidate of a search; None when it never came to be. `at_s` seconds after the search began it was
    known to take `secs`, infinite when it failed."""

    candidate: Candidate | None
    secs: float
    at_s: float


# Candidates with the seconds each took when it was first timed; None for one that never came to be.
TimedCandidates = Sequence[tuple[Candidate | None, float]]


def fastest(timed: TimedCandidates, count: int) -> list[Candidate]:
    """At most `count` different ones, those that failed left out."""
    ranked = sorted((pair for pair in timed if math.isfinite(pair[1])), key=lambda pair: pair[1])
    return list(dict.fromkeys(candidate for candidate, _ in ranked if candidate is not None))[:count]


class ProgramMeasurer:
    """Builds, verifies and times candidates for one workload, with warm caches, on the device's cores."""

    def __init__(self, module: tvm.IRModule, device: Device) -> None:
        self._builder = LocalBuilder(device.target)
        self._runner = LocalRunner(device.target)
        self._target = parse_target(device.target)
        self._workload = to_json(module)
        self._builders = ThreadPoolExecutor(device.cores)

    def build(self, candidates: Sequence[Candidate | None]) -> list[BuiltKernel | Measurement]:
        """As many at a time as there are cores; None stands for a candidate that never came to be."""
        return list(self._builders.map(self._build, candidates))

    def run(self, built: BuiltKernel | Measurement, best_s: float | None = None) -> Measurement:
        """A candidate that wasn't built stays what it is. The closer one comes to `best_s`, the longer it is
        timed; all are timed alike without."""
        if isinstance(built, Measurement):
            return built
        return self._runner.run(built, self._workload, (), best_s)

    def measure(self, candidates: Sequence[Candidate | None]) -> list[Measurement]:
        """All are built first, then timed one by one with the cores to themselves."""
        return [self.run(built) for built in self.build(candidates)]

    def timed(self, candidates: Sequence[Candidate | None], best_s: float = math.inf) -> Iterator[float]:
        """As a job's trials are after `best_s` was found: the seconds of each as soon as they are known, inf
        for a candidate that failed."""
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
        """What MetaSchedule's own builder does, in this process."""
        start_s = time.perf_counter()
        try:
            library = tvm.compile(from_json(module_json), target=self._target)
            function = library["main"]  # emits the machine code
        except Exception as error:  # TVM raises whatever class its C++ side names
            return Measurement(Outcome.BUILD_ERROR, error=str(error))
        return BuiltKernel(library, function, time.perf_counter() - start_s)


@dataclass(frozen=True)
class Finalist:
    """A built candidate that is timed in turns with others: all alike, or with `best_s` as a search times
    what comes close to that."""

    measurer: ProgramMeasurer
    built: BuiltKernel
    best_s: float | None = None

    def time_block(self, _block: Block) -> Sequence[float]:
        """The repeats that the bench finds right. Raises RuntimeError when it fails this time."""
        measurement = self.measurer.run(self.built, self.best_s)
        if measurement.outcome is not Outcome.OK:
            raise RuntimeError(measurement.error)
        return measurement.run_secs


def seconds(measurement: Measurement) -> float:
    """Infinite for a candidate that failed."""
    return measurement.latency_s if measurement.outcome is Outcome.OK else math.inf
