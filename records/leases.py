"""Leases: the work that a worker's session holds until it reports or its time is up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from records.jobs import Kind
from records.trials import Trial, TrialState
from search.measurement import Measurement, Outcome


@dataclass(frozen=True)
class ModuleRun:
    """One end-to-end timing of a job's compiled model, the blob `artifact_sha`."""

    id: int
    job_id: str
    kind: Kind
    artifact_sha: str
    state: TrialState
    attempts: int
    outcome: Outcome | None
    run_secs: tuple[float, ...]
    error: str
    outputs_sha: str | None


@dataclass(frozen=True)
class Lease:
    """What one worker's session has to do by `expires_at`: trials of one job, or one module run.

    `trials` are those not reported yet. `attempt` is 1 unless the work outlived a device that held it.
    `constants` gives, by workload, the indices of the arguments that are weights of the model.
    """

    id: str
    worker_id: str
    session_id: str
    job_id: str
    attempt: int
    expires_at: float
    trials: tuple[Trial, ...]
    module_run: ModuleRun | None
    constants: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class TrialResult:
    """A worker's result for a trial or for a module run: exactly one of the ids is given."""

    measurement: Measurement
    trial_id: int | None = None
    module_run_id: int | None = None
    outputs_sha: str | None = None

    def __post_init__(self) -> None:
        if (self.trial_id is None) == (self.module_run_id is None):
            raise ValueError("a result is of a trial or of a module run: give exactly one id")


@dataclass(frozen=True)
class Reported:
    """How many results were news, whose job they are of (None: stale lease), and whether they closed the lease."""

    accepted: int
    job_id: str | None
    closed: bool


def add_module_run(session: Session, job_id: str, kind: Kind, artifact_sha: str, now: float) -> int:
    """Ask for an end-to-end timing; its id, the same for the same job, kind and artifact. Raises BlobNotFound."""
    raise NotImplementedError


def module_runs(session: Session, job_id: str) -> list[ModuleRun]:
    """Oldest first."""
    raise NotImplementedError


def take(
    session: Session,
    lease_id: str,
    worker_id: str,
    session_id: str,
    device_class: str,
    limit: int,
    now: float,
    ttl_s: float,
) -> Lease | None:
    """Lease up to `limit` of the oldest trials of one job for this device class; a module run goes first, alone.

    A trial that has outlived a lost device is leased alone as well: if this device is lost too, it was the trial.
    """
    raise NotImplementedError


def current(session: Session, worker_id: str, session_id: str, now: float) -> Lease | None:
    """The lease that this session holds now."""
    raise NotImplementedError


def renew(session: Session, lease_id: str, session_id: str, now: float, ttl_s: float) -> bool:
    """Extend a lease to `now + ttl_s`; False when it is closed, expired or another session's."""
    raise NotImplementedError


def report(
    session: Session, lease_id: str, session_id: str, results: Sequence[TrialResult], now: float
) -> Reported:
    """Store results, each once: what is stale (lease closed, expired, another session's) or repeated changes nothing.

    Every result of a trial is a record too. Appends a "progress" event. The last result closes the lease.
    """
    raise NotImplementedError


def expire(session: Session, now: float, max_attempts: int = 2) -> list[str]:
    """Close the leases whose time is up; the ids of their jobs.

    What they had not reported is pending again, or, having taken `max_attempts` devices down, done as DEVICE_LOST.
    """
    raise NotImplementedError
