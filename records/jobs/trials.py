"""Trials: the candidates that a job wants measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from core.job import JobState
from core.measurement import Outcome
from records.jobs import jobs
from records.jobs.jobs import JobNotFound
from records.storage.statements import digest, insert_into, lock_job
from records.storage.tables import TrialRow

TrialState: TypeAlias = Literal["pending", "leased", "done"]

# What a Trial is read from; a whole TrialRow takes several times as long.
COLUMNS = (
    TrialRow.id,
    TrialRow.job_id,
    TrialRow.task_id,
    TrialRow.workload_hash,
    TrialRow.program,
    TrialRow.trace,
    TrialRow.state,
    TrialRow.attempts,
    TrialRow.outcome,
    TrialRow.run_secs,
    TrialRow.error,
    TrialRow.library_sha,
    TrialRow.repeat,
)


@dataclass(frozen=True)
class NewTrial:
    """A candidate to measure: its trace (JSON text), and the program it was lowered from. One that was
    measured before is measured again under the next number of `repeat`."""

    task_id: int
    workload_hash: str
    program: dict[str, Any] | None
    trace: str
    predicted_s: float
    repeat: int = 0

    def __post_init__(self) -> None:
        if self.repeat < 0:
            raise ValueError(f"repeat must not be negative, not {self.repeat}")
        if not 0 <= self.predicted_s < math.inf:
            raise ValueError(f"predicted_s must be finite and not negative, not {self.predicted_s}")


@dataclass(frozen=True)
class Trial:
    """A stored trial. `attempts` counts the devices that were lost while they held it; `library_sha` names
    what a builder made of it. With `repeat`, `run_secs` are all that is known of its trace, not only its
    own."""

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
    library_sha: str | None = None
    repeat: int = 0

    @property
    def latency_s(self) -> float | None:
        """Median seconds, None unless it went well."""
        return statistics.median(self.run_secs) if self.run_secs else None


@dataclass(frozen=True)
class TrialCounts:
    """How many trials of a job are in each state."""

    pending: int
    leased: int
    done: int


def add(
    session: Session,
    job_id: str,
    round: int,  # noqa: A002 - the word for it
    trials: Sequence[NewTrial],
    now: float,
) -> list[int]:
    """Issue trials and return their ids, without those whose workload, trace and repeat this job has issued.

    A finished job gets none. Raises JobNotFound.
    """
    state = lock_job(session, job_id)
    if state is None:
        raise JobNotFound(f"there is no job {job_id!r}")
    if JobState(state).finished or not trials:
        return []
    issued = _issue(session, {"job_id": job_id, "round": round, "created_at": now}, trials)
    jobs.count(session, job_id, issued=len(issued))
    return issued


def counts(session: Session, job_id: str) -> TrialCounts:
    """Zeros for an unknown job."""
    of_job = select(TrialRow.state, func.count().label("trials")).where(TrialRow.job_id == job_id)
    grouped = of_job.group_by(TrialRow.state)
    by_state = {row.state: row.trials for row in session.execute(grouped)}
    return TrialCounts(**{"pending": 0, "leased": 0, "done": 0} | by_state)


def issued_tasks(session: Session, job_id: str) -> set[int]:
    """The ids of the job's tasks that have trials in any state."""
    return set(session.scalars(select(TrialRow.task_id).where(TrialRow.job_id == job_id).distinct()))


def for_task(session: Session, task_id: int) -> list[Trial]:
    """Oldest first."""
    rows = session.scalars(select(TrialRow).where(TrialRow.task_id == task_id).order_by(TrialRow.id))
    return [trial_of(row) for row in rows]


def drop_pending(session: Session, job_id: str) -> int:
    """Delete the trials that no device has taken yet, e.g. when the minutes are spent; how many they were."""
    lock_job(session, job_id)
    return jobs.drop_pending(session, job_id)


def trial_of(row: TrialRow | Row[*tuple[Any, ...]]) -> Trial:
    """A row as the other rooms see it."""
    return Trial(
        id=row.id,
        job_id=row.job_id,
        task_id=row.task_id,
        workload_hash=row.workload_hash,
        program=row.program,
        trace=row.trace,
        state=cast("TrialState", row.state),
        attempts=row.attempts,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        run_secs=tuple(row.run_secs or ()),
        error=row.error,
        library_sha=row.library_sha,
        repeat=row.repeat,
    )


def _issue(session: Session, issue: dict[str, Any], new: Sequence[NewTrial]) -> list[int]:
    """The ids of those that the job had not issued before, in their order."""
    same = {"state": "pending", "attempts": 0, "error": ""}
    rows = [issue | asdict(trial) | {"trace_sha": digest(trial.trace)} | same for trial in new]
    key = ["workload_hash", "trace_sha", "repeat"]
    statement = insert_into(session, TrialRow).on_conflict_do_nothing(index_elements=["job_id", *key])
    columns = (TrialRow.workload_hash, TrialRow.trace_sha, TrialRow.repeat, TrialRow.id)
    issued = {tuple(one[:3]): one.id for one in session.execute(statement.returning(*columns), rows)}
    wanted = dict.fromkeys(tuple(row[name] for name in key) for row in rows)
    return [issued[one] for one in wanted if one in issued]
