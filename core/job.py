"""Jobs: their states, their budget, and the bounds of what they may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_TRIALS = 10_000_000
MAX_MINUTES = 60 * 24 * 366
MAX_PRIORITY = 1_000_000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


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


@dataclass(frozen=True)
class Budget:
    """The limits of a job: `trials`, and wall-clock `minutes` unless they are None. Either may end it.

    Without `trials`, the job compiles with the schedules that are known, and measures one first guess for
    each subgraph that has none.
    """

    trials: int
    minutes: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials must be between 0 and {MAX_TRIALS}, not {self.trials}")
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise ValueError(f"minutes must be more than 0 and at most {MAX_MINUTES}, not {self.minutes:g}")
