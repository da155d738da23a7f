"""What the child asks of whatever measures: the compiler's runner, or a test's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from core.device import Device
from core.measurement import Measurement
from core.profile import Profile


class Phase(StrEnum):
    """What a child does, with a candidate or to know its device. Each has a time limit of its own."""

    BUILD = "build"
    RUN = "run"
    CALIBRATION = "calibration"


@dataclass(frozen=True)
class BuildRequest:
    """A candidate with all that it takes to measure it: `trace` is replayed on the workload `module_json`.

    `library` is the file of what was exported of it elsewhere: it is loaded instead of built. With `export`
    it is built for the machine of its target, to be exported and not to be run here.
    """

    target: str
    module_json: str
    trace: str
    constants: tuple[int, ...]
    library: str | None = None
    export: bool = False


@dataclass(frozen=True)
class Exported:
    """A candidate as a library, packed for another machine, and the seconds that building it took."""

    data: bytes
    build_secs: float


@dataclass(frozen=True)
class Machines:
    """The machines that candidates can be exported for, and sentences about those for which they can't."""

    names: tuple[str, ...]
    problems: tuple[str, ...] = ()


Notify = Callable[[int], None]  # takes a candidate's number; from any thread


class Runner(Protocol):
    """Bad candidates come back as measurements; an exception means that the runner itself is in trouble.

    Building and running are apart: nothing is built while a candidate is timed, and yet all cores build.
    """

    def check(self) -> Device:
        """Compiles, runs and verifies a probe; this device. Raises RuntimeError when it can't be trusted."""
        ...

    def calibrate(self, budget_s: float) -> Profile:
        """What the device can do. Begins to measure nothing else once so many seconds are spent. Raises
        RuntimeError when nothing can be measured."""
        ...

    def build(self, subjects: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> Collection[int]:
        """Builds candidates, several at a time, and keeps them under their numbers; which of them it refused.

        Every one's number is given to `begun` and then, once it is built or refused, to `ended`.
        """
        ...

    def machines(self) -> Machines:
        """For which machines candidates can be exported here; each is tried."""
        ...

    def run(self, number: int, best_s: float | None) -> Measurement:
        """Verifies and times a candidate that was built, or says why it was refused; then it is gone.

        It is timed the longer, the closer it comes to `best_s`, the best latency known of its workload.
        """
        ...

    def export(self, number: int) -> Exported | Measurement:
        """A candidate that was built to be exported, or why it was refused; then it is gone."""
        ...

    def measure_module(self, artifact: bytes, compare: bool) -> Measurement:
        """One turn of a packed module: it is loaded, called for a while, and gone.

        With `compare`, only if it computes what the untuned library does that is packed with it.
        """
        ...


# The number of threads that candidates run on, and the instruction sets that the device gives up. Raises
# FeatureError when it lacks one of them.
RunnerFactory = Callable[[int, Sequence[str]], Runner]
