"""Trials: the candidates that a job wants measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy.orm import Session

from search.measurement import Outcome

TrialState: TypeAlias = Literal["pending", "leased", "done"]


@dataclass(frozen=True)
class NewTrial:
    """A candidate to measure: its trace (JSON text), and the program it was lowered from."""

    task_id: int
    workload_hash: str
    program: dict[str, Any] | None
    trace: str
    predicted_s: float


@dataclass(frozen=True)
class Trial:
    """A stored trial. `attempts` counts the devices that were lost while they held it."""

    id: int
    job_id: str
    task_id: int
    workload_hash: str
    program: dict[str, Any] | None
    trace: str
    state: TrialState
    attempts: int
    outcome: Outcome | None
    run_secs: tuple[float, ...]
    error: str

    @property
    def latency_s(self) -> float | None:
        """Median seconds, None unless it went well."""
        return statistics.median(self.run_secs) if self.run_secs else None


@dataclass(frozen=True)
class TrialCounts:
    pending: int
    leased: int
    done: int


def add(session: Session, job_id: str, round: int, trials: Sequence[NewTrial], now: float) -> list[int]:
    """Issue trials and return their ids, without those whose workload and trace this job has issued before.

    A finished job gets none. Raises JobNotFound.
    """
    raise NotImplementedError


def counts(session: Session, job_id: str) -> TrialCounts:
    raise NotImplementedError


def for_task(session: Session, task_id: int) -> list[Trial]:
    """Oldest first."""
    raise NotImplementedError


def drop_pending(session: Session, job_id: str) -> int:
    """Delete the trials that no device has taken yet, e.g. when the minutes are spent; how many they were."""
    raise NotImplementedError
