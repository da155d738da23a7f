"""Trials: a job's candidates to measure, and their results."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from sqlalchemy import ColumnElement, Row, Select, String, and_, bindparam, case, func, insert, or_, select
from sqlalchemy import cast as cast_as
from sqlalchemy.orm import Session

from core.measurement import Outcome, is_noisy
from records.jobs import jobs
from records.storage.statements import among, dialect_of, digest, lock_job, table_of
from records.storage.tables import TrialRow

TrialState: TypeAlias = Literal["pending", "leased", "done"]
# Marks a trial of a fallback schedule, which has no program of the search.
FALLBACK: Mapping[str, Any] = {}
# If the first guess for a task can't be compiled, others are tried, up to this many in all.
MAX_GUESSES = 3

MAX_MESSAGE = 2000

# The columns of a Trial. Reading only these is much faster than reading whole rows.
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
    TrialRow.run_s,
    TrialRow.error,
    TrialRow.library_sha,
    TrialRow.repeat,
    TrialRow.speed,
)


class TrialKey(NamedTuple):
    """What distinguishes the trials of a job."""

    workload_hash: str
    trace_sha: str
    repeat: int


_KEY_COLUMNS = tuple(getattr(TrialRow, name) for name in TrialKey._fields)


@dataclass(frozen=True)
class NewTrial:
    """A candidate to measure: its trace as JSON, and the program that it was lowered from. `program` is None
    if the trace was imported, and FALLBACK for the fallback schedule.

    `predicted_s` is the cost model's prediction, `estimated_s` the analytic part's. `repeat` is 0 for the
    first measurement of a candidate in a job, and counts up with each further one.
    """

    task_id: int
    workload_hash: str
    program: Mapping[str, Any] | None
    trace: str
    predicted_s: float
    repeat: int = 0
    estimated_s: float | None = None

    def __post_init__(self) -> None:
        if self.repeat < 0:
            raise ValueError(f"repeat must not be negative, not {self.repeat}")
        if not 0 <= self.predicted_s < math.inf:
            raise ValueError(f"predicted_s must be finite and not negative, not {self.predicted_s}")


@dataclass(frozen=True)
class Trial:
    """A stored trial.

    `attempts` counts the devices that were lost while they held it. `library_sha` names the library that a
    builder compiled. If `repeat` is not 0, `run_s` includes the repeats of earlier measurements of its trace.
    `speed` is the speed of the device during the measurement, as a share of its fastest speed.
    """

    id: int
    job_id: str
    task_id: int
    workload_hash: str
    program: dict[str, Any] | None
    trace: str
    state: TrialState
    attempts: int
    outcome: Outcome | None
    run_s: tuple[float, ...]
    error: str
    library_sha: str | None = None
    repeat: int = 0
    speed: float | None = None

    # Cached, because planners keep finished trials and ask for these in every round.
    @cached_property
    def latency_s(self) -> float | None:
        """The median of `run_s`; None unless the trial succeeded."""
        return statistics.median(self.run_s) if self.run_s else None

    @cached_property
    def is_disturbed(self) -> bool:
        """Whether the repeats differ so much that the device must have been disturbed."""
        return is_noisy(self.run_s)


class MeasuredTrial(NamedTuple):
    """A finished trial; `latency_s` is None unless it succeeded."""

    task_id: int
    finished_at: float
    latency_s: float | None


class Pace(NamedTuple):
    """How fast trials finish: `finished` trials, the first at `first_at`. The last one of the first half
    finished at `half_at`, and `later` ones after that. Times are epoch seconds."""

    finished: int
    first_at: float
    half_at: float
    later: int

    @classmethod
    def of(cls, finished_at: Sequence[float]) -> Pace:
        """Return the pace of trials that finished at these times: at least one time, in order."""
        half_at = finished_at[max(len(finished_at) // 2 - 1, 0)]
        later = len(finished_at) - bisect_right(finished_at, half_at)
        return cls(len(finished_at), finished_at[0], half_at, later)


class PredictedTrial(NamedTuple):
    """A successful trial: its latency, and the predictions of the cost model and of its analytic part.

    `estimated_s`, of the analytic part, is None if it wasn't stored.
    """

    latency_s: float
    predicted_s: float
    estimated_s: float | None


@dataclass(frozen=True)
class Failures:
    """The number of a job's trials that failed with the same outcome and message. `message` has at most
    MAX_MESSAGE characters."""

    outcome: Outcome
    message: str
    trials: int


@dataclass(frozen=True)
class TrialCounts:
    """The numbers of a job's trials in each state."""

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
    """Issue trials and return their ids. Skip those whose workload, trace and repeat the job has issued
    already.

    A finished job gets no trials. Raises JobNotFound.
    """
    if jobs.lock(session, job_id).finished or not trials:
        return []
    common = {
        "job_id": job_id,
        "round": round,
        "created_at": now,
        "state": "pending",
        "attempts": 0,
        "error": "",
    }
    keys = [TrialKey(one.workload_hash, digest(one.trace), one.repeat) for one in trials]
    issued_before = _issued(session, job_id, keys)
    rows: dict[TrialKey, dict[str, Any]] = {}
    for key, trial in zip(keys, trials, strict=True):
        if key not in issued_before:
            rows.setdefault(key, common | vars(trial) | {"trace_sha": key.trace_sha})
    if not rows:
        return []
    statement = insert(TrialRow).returning(*_KEY_COLUMNS, TrialRow.id)
    id_of = {TrialKey(*row[:3]): row.id for row in session.execute(statement, list(rows.values()))}
    jobs.count(session, job_id, issued=len(rows))
    return [id_of[key] for key in rows]


def _issued(session: Session, job_id: str, keys: Sequence[TrialKey]) -> set[TrialKey]:
    """Return the keys of the job's trials, at least those among `keys`.

    An INSERT of an existing trial would wait for a transaction that stores the trial's result. That one may
    wait for the job, which the caller has locked.
    """
    values = {
        "job_id": job_id,
        "workloads": list({key.workload_hash for key in keys}),
        "traces": list({key.trace_sha for key in keys}),
    }
    return {TrialKey(*row) for row in session.execute(_select_issued(dialect_of(session)), values)}


@cache
def _select_issued(dialect: str) -> Select[*tuple[Any, ...]]:
    of_workloads = among(dialect, table_of(TrialRow).c.workload_hash, "workloads")
    with_traces = among(dialect, table_of(TrialRow).c.trace_sha, "traces")
    return select(*_KEY_COLUMNS).where(TrialRow.job_id == bindparam("job_id"), of_workloads, with_traces)


def counts(session: Session, job_id: str) -> TrialCounts:
    """Count a job's trials by state; zeros for an unknown job."""
    of_job = select(TrialRow.state, func.count().label("trials")).where(TrialRow.job_id == job_id)
    grouped = of_job.group_by(TrialRow.state)
    by_state = {row.state: row.trials for row in session.execute(grouped)}
    return TrialCounts(**{"pending": 0, "leased": 0, "done": 0} | by_state)


def attempted_tasks(session: Session, job_id: str) -> set[int]:
    """Return the ids of the job's tasks that have an open trial, or a trial of the search or of the fallback
    schedule. Programs that could not be compiled count only once there are MAX_GUESSES of them.
    """
    is_searched = and_(TrialRow.program.is_not(None), ~_is_fallback())
    is_uncompilable = and_(is_searched, TrialRow.state == "done", TrialRow.outcome == Outcome.BUILD_ERROR)
    counts = or_(TrialRow.program.is_not(None), TrialRow.state != "done")
    others = func.sum(case((is_uncompilable, 0), else_=1))
    guessed = (
        select(TrialRow.task_id)
        .where(TrialRow.job_id == job_id, counts)
        .group_by(TrialRow.task_id)
        .having(or_(others > 0, func.count() >= MAX_GUESSES))
    )
    return set(session.scalars(guessed))


def fallbacks(session: Session, job_id: str) -> dict[str, Trial]:
    """Return the job's trials of fallback schedules, by the workload's hash."""
    rows = session.scalars(select(TrialRow).where(TrialRow.job_id == job_id, _is_fallback()))
    return {row.workload_hash: trial_of(row) for row in rows}


def _is_fallback() -> ColumnElement[bool]:
    return cast_as(TrialRow.program, String) == json.dumps(FALLBACK)


def for_task(session: Session, task_id: int) -> list[Trial]:
    """Return a task's trials, oldest first."""
    rows = session.execute(select(*COLUMNS).where(TrialRow.task_id == task_id).order_by(TrialRow.id))
    return [trial_of(row) for row in rows]


def last_repeat(session: Session, task_id: int, trace: str) -> int:
    """Return how often the task's job has measured a trace again; 0 if never."""
    same = (TrialRow.task_id == task_id, TrialRow.trace_sha == digest(trace))
    return session.scalar(select(func.max(TrialRow.repeat)).where(*same)) or 0


def of_job(session: Session, job_id: str, after: int = 0) -> list[Trial]:
    """Return a job's trials whose ids are larger than `after`, oldest first.

    A job's trials become visible in the order of their ids, because adding them locks the job.
    """
    later = select(*COLUMNS).where(TrialRow.job_id == job_id, TrialRow.id > after)
    return [trial_of(row) for row in session.execute(later.order_by(TrialRow.id))]


def measured(session: Session, job_id: str) -> list[MeasuredTrial]:
    """Return the job's trials that are done, in the order in which they ended."""
    # Written with the columns of the index ix_trials_done, which covers the query. With the ORM's columns it
    # takes twice as long.
    table = table_of(TrialRow).c
    columns = [table[name] for name in MeasuredTrial._fields]
    done = select(*columns).where(table.job_id == job_id, table.finished_at.is_not(None))
    return [MeasuredTrial(*row) for row in session.execute(done.order_by(table.finished_at, table.id))]


def pace(session: Session, job_ids: Collection[str]) -> Pace | None:
    """Return the pace of the jobs' finished trials; None if no trial has finished."""
    finished_at = table_of(TrialRow).c.finished_at
    done = (table_of(TrialRow).c.job_id.in_(job_ids), finished_at.is_not(None))
    number, first_at = session.execute(select(func.count(), func.min(finished_at)).where(*done)).one()
    if not number:
        return None
    in_order = select(finished_at).where(*done).order_by(finished_at)
    half_at = session.scalars(in_order.offset(max(number // 2 - 1, 0)).limit(1)).one()
    later = session.scalars(select(func.count()).where(*done, finished_at > half_at)).one()
    return Pace(number, first_at, half_at, later)


def improvements(session: Session, job_ids: Collection[str]) -> list[MeasuredTrial]:
    """Return the trials that were faster than all earlier trials of their task, first finished first."""
    table = table_of(TrialRow).c
    columns = [table[name] for name in MeasuredTrial._fields]
    earlier = func.min(table.latency_s).over(
        partition_by=table.task_id, order_by=(table.finished_at, table.id), rows=(None, -1)
    )
    worked = (table.job_id.in_(job_ids), table.finished_at.is_not(None), table.latency_s.is_not(None))
    trials = select(*columns, table.id, earlier.label("earlier_s")).where(*worked).subquery().c
    faster = or_(trials.earlier_s.is_(None), trials.latency_s < trials.earlier_s)
    found = select(*(trials[name] for name in MeasuredTrial._fields)).where(faster)
    return [MeasuredTrial(*row) for row in session.execute(found.order_by(trials.finished_at, trials.id))]


def predictions(session: Session, task_id: int) -> list[PredictedTrial]:
    """Return the task's successful trials, the fastest first."""
    columns = [getattr(TrialRow, name) for name in PredictedTrial._fields]
    measured = select(*columns).where(
        TrialRow.task_id == task_id, TrialRow.state == "done", TrialRow.latency_s.is_not(None)
    )
    return [
        PredictedTrial(*row) for row in session.execute(measured.order_by(TrialRow.latency_s, TrialRow.id))
    ]


def failures(session: Session, job_id: str, limit: int) -> list[Failures]:
    """Return the failures of the job's trials by outcome and message, the most frequent first."""
    message = func.substr(TrialRow.error, 1, MAX_MESSAGE)
    number = func.count().label("trials")
    # The index ix_trials_done serves the first three conditions, so the last one reads few rows.
    failed = select(TrialRow.outcome, message, number).where(
        TrialRow.job_id == job_id,
        TrialRow.finished_at.is_not(None),
        TrialRow.latency_s.is_(None),
        TrialRow.outcome != Outcome.OK,
    )
    grouped = failed.group_by(TrialRow.outcome, message).order_by(number.desc(), TrialRow.outcome, message)
    return [Failures(Outcome(row[0]), row[1], row[2]) for row in session.execute(grouped.limit(limit))]


def drop_pending(
    session: Session, job_id: str, *, keep_repeats: bool = False, issued_before: float | None = None
) -> int:
    """Delete the job's pending trials, for example when its time is up. Return their number.

    With `keep_repeats`, trials that measure a program again are kept. With `issued_before`, in epoch seconds,
    only trials that were issued before are deleted.
    """
    lock_job(session, job_id)
    return jobs.drop_pending_trials(session, job_id, keep_repeats=keep_repeats, issued_before=issued_before)


def trial_of(row: TrialRow | Row[*tuple[Any, ...]]) -> Trial:
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
        run_s=tuple(row.run_s or ()),
        error=row.error,
        library_sha=row.library_sha,
        repeat=row.repeat,
        speed=row.speed,
    )
