"""The interface between a child and its runner, which builds, verifies and times candidates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Protocol

from core.device import Device
from core.measurement import Measurement
from core.profile import Profile


class Phase(StrEnum):
    """The kinds of work that a child does, each with its own time limit."""

    BUILD = "build"
    RUN = "run"
    CALIBRATION = "calibration"


@dataclass(frozen=True)
class BuildRequest:
    """A candidate to build: `trace` is replayed on the workload `module_json`.

    `library` is a library that a builder has made of the candidate: it is loaded instead. With `export` the
    candidate is built for the machine of its target, to be exported rather than run here. The constants of
    its model have `model_bytes`, 0 if that is unknown.
    """

    target: str
    module_json: str
    trace: str
    constants: tuple[int, ...]
    library: str | None = None
    export: bool = False
    model_bytes: int = 0


@dataclass(frozen=True)
class Exported:
    """A candidate as a packed library for another machine, and the seconds that building it took."""

    data: bytes
    build_s: float


@dataclass(frozen=True)
class Inferred:
    """The outputs of a model as an .npz file, and the seconds of the call."""

    data: bytes
    run_s: float


@dataclass(frozen=True)
class Platforms:
    """The platforms that candidates can be exported for, and a sentence about each other one."""

    names: tuple[str, ...]
    problems: tuple[str, ...] = ()


Notify = Callable[[int], None]  # is given a candidate's number, from any thread


class Runner(Protocol):
    """Builds and measures candidates. A bad candidate is a measurement; an exception is a bug in the runner.

    Building and running are separate calls: building uses all cores, and nothing is built while a candidate
    is timed.
    """

    def check(self) -> Device:
        """Compile, run and verify a probe, and return this device. Raises RuntimeError when that fails."""
        ...

    def calibrate(self, budget_s: float) -> Profile:
        """Measure the device's speeds; begin no other measurement after `budget_s` seconds.

        Raises RuntimeError when nothing can be measured.
        """
        ...

    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> Collection[int]:
        """Build candidates, several at a time, and keep them under their numbers.

        Call `begun` with each number, and `ended` once that candidate is built or has failed to. Return the
        numbers of those that failed; `run` and `export` return why.
        """
        ...

    def platforms(self) -> Platforms:
        """Try each platform, and return the ones that candidates can be exported for."""
        ...

    def run(self, number: int, best_s: float | None) -> Measurement:
        """Verify and time a candidate that was built, and forget it.

        `best_s` is the best latency known of its workload: a candidate that comes close is timed for longer.
        """
        ...

    def export(self, number: int) -> Exported | Measurement:
        """Return a candidate that was built for export, or why it failed, and forget it."""
        ...

    def measure_module(self, artifact: IO[bytes], compare: bool) -> Measurement:
        """Load a packed module, call it for a while, and unload it.

        With `compare`, first compare its outputs with the outputs of the untuned library that is packed with
        it.
        """
        ...

    def infer(self, packed: IO[bytes]) -> Inferred | Measurement:
        """Call a packed module once with the inputs that are packed with it, and unload it."""
        ...

    def measure_onnx(self, model: IO[bytes], shapes: str) -> Measurement:
        """Call an ONNX model in ONNX Runtime for a while. `shapes` are the shapes of its inputs that the user
        gave, as a JSON object by name."""
        ...


# Makes a runner for a number of threads, on a device that is to do without some instruction sets. Raises
# FeatureError when the device lacks one of them anyway.
RunnerFactory = Callable[[int, Sequence[str]], Runner]
