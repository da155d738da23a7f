"""Jobs: what was asked for, how far it is, and who may take its next step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from sqlalchemy.orm import Session

Kind: TypeAlias = Literal["untuned", "tuned"]


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


class JobNotFound(KeyError):
    """No job has this id."""


class IdempotencyConflict(Exception):
    """The idempotency key was already used for another request."""


@dataclass(frozen=True)
class JobRequest:
    """What a user asks for. `minutes` is the budget of wall-clock minutes, None for no limit."""

    model_sha: str
    model_name: str
    shapes: dict[str, tuple[int, ...]]
    target: str
    trials: int
    minutes: float | None
    seed: int

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, not {self.trials}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be positive, not {self.minutes}")


@dataclass(frozen=True)
class Job:
    """A job as stored. `message` says what it is doing or waiting for; `*_secs` are whole-model repeats."""

    id: str
    request: JobRequest
    state: JobState
    error: str | None
    device_class: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    trials_done: int
    trials_issued: int
    untuned_secs: tuple[float, ...] | None
    tuned_secs: tuple[float, ...] | None
    artifact_sha: str | None
    untuned_artifact_sha: str | None
    message: str


def create(
    session: Session, job_id: str, request: JobRequest, idempotency_key: str | None, now: float
) -> Job:
    """Store a new job, or return the one that the same key and request made before.

    Raises IdempotencyConflict when the key came with another request, ModelNotFound.
    """
    raise NotImplementedError


def get(session: Session, job_id: str) -> Job:
    """Raises JobNotFound."""
    raise NotImplementedError


def list_jobs(session: Session, limit: int, before: str | None) -> list[Job]:
    """Newest first, starting after the job with id `before`. Raises JobNotFound for an unknown `before`."""
    raise NotImplementedError


def unfinished(session: Session) -> list[Job]:
    """Every job that is not in a final state, oldest first."""
    raise NotImplementedError


def claim(session: Session, job_id: str, holder: str, now: float, ttl_s: float) -> bool:
    """Become the only one to step this job for `ttl_s` seconds; a claim by its holder renews it."""
    raise NotImplementedError


def release(session: Session, job_id: str, holder: str) -> None:
    """Give up a claim; one that has passed to another holder stays as it is."""
    raise NotImplementedError


def advance(
    session: Session,
    job_id: str,
    expected: Collection[JobState],
    to: JobState,
    now: float,
    *,
    error: str | None = None,
    message: str = "",
) -> bool:
    """Move a job from one of the `expected` states; False, and nothing changed, when it is in none of them.

    Appends a "state" event. In a final state, trials and module runs that wait for a device are dropped.
    """
    raise NotImplementedError


def cancel(session: Session, job_id: str, now: float) -> Job:
    """Cancel a job unless it is finished; what devices are measuring lapses. Raises JobNotFound."""
    raise NotImplementedError


def set_device_class(session: Session, job_id: str, device_class: str) -> bool:
    """False when the job is cancelled or failed. Raises DeviceClassNotFound."""
    raise NotImplementedError


def set_message(session: Session, job_id: str, message: str) -> bool:
    """Say what the job is doing or waiting for. False when the job is cancelled or failed."""
    raise NotImplementedError


def set_artifacts(
    session: Session, job_id: str, untuned_sha: str | None = None, tuned_sha: str | None = None
) -> bool:
    """Name the blobs of the compiled models; None leaves one as it is. False when cancelled or failed."""
    raise NotImplementedError


def set_end_to_end(session: Session, job_id: str, kind: Kind, secs: Sequence[float]) -> bool:
    """Store the seconds of each repeat of the whole model. False when the job is cancelled or failed."""
    raise NotImplementedError
