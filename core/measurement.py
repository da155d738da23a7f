"""The result of one candidate: a measurement on a device, or a library built for it."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

_SHA256 = re.compile("[0-9a-f]{64}")
# More than the memory of a thread.
MAX_RESOURCE = 1 << 24
# More than the memory of any machine: the largest integer of a database column.
MAX_MEMORY_BYTES = (1 << 63) - 1
# Repeats are noisy if they spread by more than this share of their median.
NOISY = 0.25
# A device that runs at less than this share of its fastest speed is slowed down.
SLOWED = 0.85
# A confidence interval comes from the medians of this many parts. A worker times whole models in at least as
# many turns.
INTERVAL_PARTS = 5
# The 97.5th percentile of Student's t distribution with INTERVAL_PARTS - 1 degrees of freedom.
_T = 2.776


class Outcome(StrEnum):
    """The outcome of a trial."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    RUN_ERROR = "run_error"
    RUN_TIMEOUT = "run_timeout"
    WRONG_RESULT = "wrong_result"
    DEVICE_LOST = "device_lost"
    OUT_OF_MEMORY = "out_of_memory"
    ILLEGAL_ACCESS = "illegal_access"
    LAUNCH_ERROR = "launch_error"
    SPILLED = "spilled"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Outcome:
        # A newer worker may report an outcome that this code doesn't know.
        return cls.UNKNOWN


@dataclass(frozen=True)
class Resources:
    """The largest resources of a candidate's GPU kernels, as the compiler reports them.

    `registers` counts the 32-bit registers of a thread. `spilled_bytes` is the memory in which a thread
    stores values that don't fit into its registers.
    """

    registers: int
    spilled_bytes: int

    def __post_init__(self) -> None:
        for name in ("registers", "spilled_bytes"):
            if not 0 <= getattr(self, name) < MAX_RESOURCE:
                raise ValueError(f"no thread has {name} of {getattr(self, name)}")


@dataclass(frozen=True)
class Footprint:
    """What a whole model takes besides time.

    `load_s` is the time to load its library. `memory_bytes` is the memory that it adds to a process that
    calls it: weights, activations and code. `energy_j` is the energy of a call; None if the machine doesn't
    tell.
    """

    load_s: float
    memory_bytes: int
    energy_j: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.load_s < math.inf:
            raise ValueError(f"load_s must be positive and finite, not {self.load_s}")
        if not 0 <= self.memory_bytes < MAX_MEMORY_BYTES:
            raise ValueError(f"no machine has a memory of {self.memory_bytes} bytes")
        if self.energy_j is not None and not 0.0 <= self.energy_j < math.inf:
            raise ValueError(f"energy_j must be finite and not negative, not {self.energy_j}")

    def merged(self, other: Footprint) -> Footprint:
        """Return the shorter load and the smaller memory of two turns, with this footprint's energy.

        A process may load parts of the runtime in its first turn.
        """
        return replace(
            self,
            load_s=min(self.load_s, other.load_s),
            memory_bytes=min(self.memory_bytes, other.memory_bytes),
        )


@dataclass(frozen=True)
class Measurement:
    """The result of running a candidate or a module: the seconds of each repeat, or an error.

    The `error` of a successful measurement says why it is doubtful; it is empty otherwise. `resources` is
    None if the compiler didn't report them. Only whole models have a `footprint`. `speed` is the speed of the
    device during the measurement, as a share of its fastest speed. It is None if unknown.
    """

    outcome: Outcome
    run_s: tuple[float, ...] = ()
    build_s: float = 0.0
    error: str = ""
    resources: Resources | None = None
    footprint: Footprint | None = None
    speed: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_s", tuple(self.run_s))
        if any(not 0.0 < secs < float("inf") for secs in self.run_s):
            raise ValueError("run_s must be positive and finite")
        if (self.outcome is Outcome.OK) != bool(self.run_s):
            raise ValueError("a measurement has run_s if and only if it succeeded")
        if self.speed is not None and not 0.0 < self.speed <= 1.0:
            raise ValueError(f"speed must be a share of the fastest speed, not {self.speed}")

    @property
    def latency_s(self) -> float:
        """The median of the repeats in seconds. Raises ValueError for a failed measurement."""
        if not self.run_s:
            raise ValueError(f"no latency: the trial ended as {self.outcome}")
        return statistics.median(self.run_s)


@dataclass(frozen=True)
class Built:
    """The result of building a candidate: a library, stored under its SHA-256 `sha`.

    Its `outcome` is OK and its `run_s` is empty, so that most code treats it like a measurement.
    """

    sha: str
    build_s: float

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha):
            raise ValueError("a library is named by its SHA-256 in lower-case hexadecimal")
        if not 0.0 <= self.build_s < math.inf:
            raise ValueError(f"build_s must not be negative, not {self.build_s}")

    @property
    def outcome(self) -> Outcome:
        return Outcome.OK

    @property
    def run_s(self) -> tuple[float, ...]:
        return ()


def is_slowed(speed: float | None) -> bool:
    """Return whether a device is slowed down. `speed` is a share of its fastest speed. An unknown speed
    counts as the fastest. Heat slows a device down, and so do other programs on its cores.
    """
    return speed is not None and speed < SLOWED


def spread(run_s: Sequence[float]) -> tuple[float, float]:
    """Return the 10th and the 90th percentile of at least one repeat."""
    if len(run_s) == 1:
        return run_s[0], run_s[0]
    deciles = statistics.quantiles(run_s, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def noise(run_s: Sequence[float]) -> float | None:
    """Return the spread of repeats, from the 10th to the 90th percentile, as a fraction of their median.

    It is None for a single repeat.
    """
    if len(run_s) < 2:
        return None
    low, high = spread(run_s)
    return (high - low) / statistics.median(run_s)


def confidence_interval(run_s: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the median, in seconds; None for fewer than ten repeats.

    Repeats of one turn share the state of the machine, so they aren't independent. The interval is therefore
    computed from the medians of five parts of the repeats, in the order in which they were measured.
    """
    count = len(run_s)
    if count < 2 * INTERVAL_PARTS:
        return None
    ends = [count * part // INTERVAL_PARTS for part in range(INTERVAL_PARTS + 1)]
    medians = [statistics.median(run_s[start:end]) for start, end in pairwise(ends)]
    half = _T * statistics.stdev(medians) / math.sqrt(INTERVAL_PARTS)
    median = statistics.median(run_s)
    return max(median - half, min(run_s)), min(median + half, max(run_s))


def is_noisy(run_s: Sequence[float]) -> bool:
    """Return whether the repeats differ so much that the device must have been disturbed."""
    return (noise(run_s) or 0.0) > NOISY
