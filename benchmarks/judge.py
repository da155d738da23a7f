"""Times candidates of whatever engine with our bench, so that all are measured alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tvm

from benchmarks.interleaved import Block
from compiler.bench import Bench, Built
from compiler.workload import to_json
from search.device import Device
from search.measurement import Measurement, Outcome

# The trace of a module that was scheduled already.
NOTHING_MORE = "[[],[]]"


@dataclass(frozen=True)
class Candidate:
    """A module as JSON text and the trace that schedules it."""

    module_json: str
    trace: str

    @classmethod
    def scheduled(cls, module: tvm.IRModule) -> Candidate:
        """One that another engine has scheduled to the end."""
        return cls(to_json(module), NOTHING_MORE)


class Judge:
    """Builds, verifies and times candidates for one workload, with warm caches, on the device's cores."""

    def __init__(self, module: tvm.IRModule, device: Device) -> None:
        self._bench = Bench(device.target)
        self._workload = to_json(module)
        self._builders = ThreadPoolExecutor(device.cores)

    def build(self, candidates: Sequence[Candidate | None]) -> list[Built | Measurement]:
        """As many at a time as there are cores; None stands for a candidate that never came to be."""
        return list(self._builders.map(self._build, candidates))

    def run(self, built: Built | Measurement) -> Measurement:
        """A candidate that wasn't built stays what it is."""
        return self._bench.run(built, self._workload, ()) if isinstance(built, Built) else built

    def measure(self, candidates: Sequence[Candidate | None]) -> list[Measurement]:
        """All are built first, then timed one by one with the cores to themselves."""
        return [self.run(built) for built in self.build(candidates)]

    def _build(self, candidate: Candidate | None) -> Built | Measurement:
        if candidate is None:
            return Measurement(Outcome.BUILD_ERROR, error="not a schedule")
        return self._bench.build(candidate.module_json, candidate.trace)


@dataclass(frozen=True)
class Finalist:
    """A built candidate that is timed in turns with others."""

    judge: Judge
    built: Built

    def time_block(self, _block: Block) -> Sequence[float]:
        """The repeats that the bench finds right. Raises RuntimeError when it fails this time."""
        measurement = self.judge.run(self.built)
        if measurement.outcome is not Outcome.OK:
            raise RuntimeError(measurement.error)
        return measurement.run_secs


def seconds(measurement: Measurement) -> float:
    """Infinite for a candidate that failed."""
    return measurement.latency_s if measurement.outcome is Outcome.OK else math.inf
