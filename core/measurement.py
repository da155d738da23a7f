"""The result of one candidate: a measurement on a device, or a library built for it."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from enum import StrEnum

_SHA256 = re.compile("[0-9a-f]{64}")


class Outcome(StrEnum):
    """How a trial ended. A trial that fails is still a lease that went well."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    RUN_ERROR = "run_error"
    RUN_TIMEOUT = "run_timeout"
    WRONG_RESULT = "wrong_result"
    DEVICE_LOST = "device_lost"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Outcome:
        # A newer worker may report an outcome this code has never heard of: a failure, not a crash.
        return cls.UNKNOWN


@dataclass(frozen=True)
class Measurement:
    """One candidate's result: wall-clock seconds of every repeat, or why there are none."""

    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    build_secs: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_secs", tuple(self.run_secs))
        if any(not 0.0 < secs < float("inf") for secs in self.run_secs):
            raise ValueError("run_secs must be positive and finite")
        if (self.outcome is Outcome.OK) != bool(self.run_secs):
            raise ValueError("exactly the measurements that went well have run_secs")

    @property
    def latency_s(self) -> float:
        """Median seconds of the repeats. Raises ValueError for a failed measurement."""
        if not self.run_secs:
            raise ValueError(f"no latency: the trial ended as {self.outcome}")
        return statistics.median(self.run_secs)


@dataclass(frozen=True)
class Built:
    """The library that a builder made of a candidate: stored under its SHA-256, after `build_secs` seconds.

    It answers as a Measurement does that went well and has no repeats.
    """

    sha: str
    build_secs: float

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha):
            raise ValueError("what names a library is its SHA-256 in lower-case hexadecimal")
        if not 0.0 <= self.build_secs < math.inf:
            raise ValueError(f"build_secs must not be negative, not {self.build_secs}")

    @property
    def outcome(self) -> Outcome:
        return Outcome.OK

    @property
    def run_secs(self) -> tuple[float, ...]:
        return ()
