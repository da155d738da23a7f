"""Jobs: their states, their budget, and the bounds of what they may ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

MAX_TRIALS = 10_000_000
MAX_MINUTES = 60 * 24 * 366
MAX_PRIORITY = 1_000_000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_MODELS = 16
MAX_BATCH = 65_536
# The name of the variants that a job asks for by `tf32`.
TF32 = "tf32"


class JobState(StrEnum):
    """A job runs through the first five in order; the last three are final."""

    QUEUED = "queued"
    IMPORTING = "importing"
    TUNING = "tuning"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


UNFINISHED = frozenset(state for state in JobState if not state.finished)


class Build(StrEnum):
    """The choice of machines that compile a job's candidates.

    With DEVICE, the devices that measure them do, with BUILDER, workers that only build. AUTO leaves the
    choice to the service.
    """

    AUTO = "auto"
    DEVICE = "device"
    BUILDER = "builder"


class EndReason(StrEnum):
    """The reason why a job's tuning ended."""

    TRIALS = "trials"
    MINUTES = "minutes"
    LATENCY = "latency"
    GAIN = "gain"
    EXHAUSTED = "exhausted"

    @property
    def text(self) -> str:
        return _END_TEXTS[self]


_END_TEXTS = {
    EndReason.TRIALS: "all trials were spent",
    EndReason.MINUTES: "the minutes were up",
    EndReason.LATENCY: "the latency asked for was reached, by estimate",
    EndReason.GAIN: "the next minute was expected to gain too little",
    EndReason.EXHAUSTED: "the search had nothing new to try",
}


@dataclass(frozen=True)
class Budget:
    """The goals of a job, the first of which ends its tuning: `trials`, and unless they are None, wall-clock
    `minutes`; a latency of the whole model, `latency_s`, by estimate; and `min_gain`, the part of the latency
    that the next minute must be expected to gain.

    Without `trials`, the job compiles with the schedules that are known, and measures one first guess for
    each subgraph that has none.
    """

    trials: int
    minutes: float | None = None
    latency_s: float | None = None
    min_gain: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials must be between 0 and {MAX_TRIALS}, not {self.trials}")
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise ValueError(f"minutes must be more than 0 and at most {MAX_MINUTES}, not {self.minutes:g}")
        if self.latency_s is not None and not 0 < self.latency_s < math.inf:
            raise ValueError(f"latency_s must be more than 0, not {self.latency_s:g}")
        if self.min_gain is not None and not 0 < self.min_gain < 1:
            raise ValueError(f"min_gain must be a part between 0 and 1, not {self.min_gain:g}")
