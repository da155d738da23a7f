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

    If a builder has compiled the candidate, `library` is loaded instead. With `export`, the candidate is
    built for its target's machine, and exported instead of run here. `model_bytes` is the size of the model's
    constants, 0 if unknown.
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
    """A candidate as a packed library for another machine, and the seconds to build it."""

    data: bytes
    build_s: float


@dataclass(frozen=True)
class Inferred:
    """The outputs of a model as an .npz file, and the seconds of the call."""

    data: bytes
    run_s: float


@dataclass(frozen=True)
class Calls:
    """`count` calls of a model, one after another, between two times of `time.monotonic`."""

    began_s: float
    ended_s: float
    count: int


@dataclass(frozen=True)
class Platforms:
    """The platforms that candidates can be exported for, and for each other platform why not."""

    names: tuple[str, ...]
    problems: tuple[str, ...] = ()


Notify = Callable[[int], None]  # called with a candidate's number, from any thread


class Runner(Protocol):
    """Builds and measures candidates. A bad candidate results in a failed measurement. An exception is a bug
    of the runner.

    Building and running are separate calls, because building uses all cores, and nothing may be built while a
    candidate is timed.
    """

    def check(self) -> Device:
        """Compile, run and verify a probe. Return this device. Raises RuntimeError if that fails."""
        ...

    def calibrate(self, budget_s: float) -> Profile:
        """Measure the device's speeds; begin no other measurement after `budget_s` seconds.

        Raises RuntimeError if nothing can be measured.
        """
        ...

    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> Collection[int]:
        """Build candidates, several at a time, and store them by their numbers.

        Call `begun` with a candidate's number when it begins, and `ended` when it is built or has failed.
        Return the numbers of failed candidates; `run` and `export` return their failures.
        """
        ...

    def platforms(self) -> Platforms:
        """Link a probe for each platform. Return the platforms that candidates can be exported for."""
        ...

    def run(self, number: int, best_s: float | None) -> Measurement:
        """Verify and time a built candidate, then delete it.

        `best_s` is the best known latency of its workload. A candidate that comes close to it is timed
        longer.
        """
        ...

    def export(self, number: int) -> Exported | Measurement:
        """Return a candidate that was built for export, or its failure, then delete it."""
        ...

    def measure_module(self, artifact: IO[bytes], compare: bool) -> Measurement:
        """Load a packed module, time calls of it, and unload it.

        With `compare`, first compare its outputs with the outputs of the untuned library that is packed with
        it.
        """
        ...

    def call_module(self, artifact: IO[bytes], seconds: float) -> Calls | Measurement:
        """Load a packed module, call it for some seconds, and unload it."""
        ...

    def infer(self, packed: IO[bytes]) -> Inferred | Measurement:
        """Call a packed module once with the inputs that are packed with it, and unload it."""
        ...

    def measure_onnx(self, model: IO[bytes], shapes: str) -> Measurement:
        """Time calls of an ONNX model in ONNX Runtime. `shapes` has the user's shapes of inputs, as a JSON
        object by name."""
        ...


# Returns a runner for a number of threads and a set of instruction sets not to use. Raises FeatureError if
# the device lacks one of them anyway.
RunnerFactory = Callable[[int, Sequence[str]], Runner]
