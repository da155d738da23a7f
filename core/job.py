"""Jobs: the states that they run through, and the bounds of what they ask for."""

from __future__ import annotations

from enum import StrEnum

MAX_TRIALS = 10_000_000
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


class Build(StrEnum):
    """Who compiles a job's candidates: the devices that measure them, workers that only build, or whoever is
    likely to be quicker at it."""

    AUTO = "auto"
    DEVICE = "device"
    BUILDER = "builder"


UNFINISHED = frozenset(state for state in JobState if not state.finished)
