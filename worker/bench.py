"""What the child asks of whatever measures: the compiler's bench, or a test's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from search.device import Device
from search.measurement import Measurement


class Phase(StrEnum):
    """What a child does with a candidate. Each has a time limit of its own."""

    BUILD = "build"
    RUN = "run"


@dataclass(frozen=True)
class Subject:
    """A candidate with all that it takes to measure it: `trace` is replayed on the workload `module_json`."""

    target: str
    module_json: str
    trace: str
    constants: tuple[int, ...]


class Bench(Protocol):
    """Bad candidates come back as measurements; an exception means that the bench itself is in trouble."""

    def check(self) -> Device:
        """Compiles, runs and verifies a probe; this device. Raises RuntimeError when it can't be trusted."""
        ...

    def measure(
        self, subject: Subject, ahead: Sequence[Subject], entered: Callable[[Phase], None]
    ) -> Measurement:
        """Builds, verifies and times a candidate; calls `entered` when it goes from building to running.

        Those `ahead` come next: they may be built at the same time, so that nothing is built while another
        is timed and yet all cores build.
        """
        ...

    def measure_module(self, artifact: bytes) -> Measurement:
        """Times a packed module end to end."""
        ...


BenchFactory = Callable[[int], Bench]  # the number of threads that candidates run on
