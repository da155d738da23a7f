"""What a result becomes: a finished trial, a record, a mark in the book of the worker that measured it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Double, Select, Update, and_, bindparam, func, select, update
from sqlalchemy.orm import Session

from core.measurement import Built, Measurement, Outcome
from records.storage.statements import table_of, update_each
from records.storage.tables import JobRow, LeaseRow, ModuleRunRow, RecordRow, TrialRow, WorkerRow

# Of a program that is measured again and again, so many seconds are kept: some four measurements.
MOST_SECS = 400


@dataclass(frozen=True)
class LeaseResult:
    """A worker's result for a trial or for a module run: exactly one of the ids is given. `measurement` is a
    Built where a trial was built for another device."""

    measurement: Measurement | Built
    trial_id: int | None = None
    module_run_id: int | None = None

    def __post_init__(self) -> None:
        if (self.trial_id is None) == (self.module_run_id is None):
            raise ValueError("a result is of a trial or of a module run: give exactly one id")


def apart(
    news: Sequence[LeaseResult],
) -> tuple[list[tuple[LeaseResult, Measurement]], dict[int, Built]]:
    """What has ended, and what was built and waits for a device."""
    over = [(one, one.measurement) for one in news if isinstance(one.measurement, Measurement)]
    built = {
        one.trial_id: one.measurement
        for one in news
        if one.trial_id is not None and isinstance(one.measurement, Built)
    }
    return over, built


def ended(measurement: Measurement, now: float) -> dict[str, Any]:
    """The columns of a trial or a module run that has ended so."""
    return {
        "state": "done",
        "outcome": measurement.outcome,
        "run_secs": list(measurement.run_secs),
        "build_secs": measurement.build_secs,
        "error": measurement.error,
        "finished_at": now,
    }


def with_earlier(
    session: Session, news: Sequence[tuple[LeaseResult, Measurement]], repeats: Collection[int]
) -> list[tuple[LeaseResult, Measurement]]:
    """What the trials `repeats` measured again, put together with what was known of their programs."""
    if not repeats:
        return list(news)
    known = {row.id: row.run_secs for row in session.execute(_earlier(), {"trials": list(repeats)})}
    return [(one, _together(end, known.get(one.trial_id, ()))) for one, end in news]


@cache
def _earlier() -> Select[int, list[Any]]:
    """The seconds that the records of some trials' programs have. What imported ones were measured under,
    nobody knows."""
    same = (
        RecordRow.workload_hash == TrialRow.workload_hash,
        RecordRow.device_class == JobRow.device_class,
        RecordRow.trace_sha == TrialRow.trace_sha,
        RecordRow.outcome == Outcome.OK,
        RecordRow.source == "trial",
    )
    of_trials = select(TrialRow.id, RecordRow.run_secs).join(JobRow, JobRow.id == TrialRow.job_id)
    return of_trials.join(RecordRow, and_(*same)).where(TrialRow.id.in_(bindparam("trials", expanding=True)))


def _together(measurement: Measurement, before: Sequence[float]) -> Measurement:
    if measurement.outcome is not Outcome.OK:
        return measurement
    # The device may have changed since the oldest of them.
    return replace(measurement, run_secs=(*before, *measurement.run_secs)[-MOST_SECS:])


def finish(session: Session, news: Sequence[tuple[LeaseResult, Measurement]], now: float) -> None:
    """Store how trials and module runs have ended.

    Each statement is for all of its rows at once: a busy service has thousands a second.
    """
    measured = [
        {"id": one.trial_id, "latency_s": _latency_s(end)} | ended(end, now)
        for one, end in news
        if one.trial_id is not None
    ]
    timed = [
        {"id": one.module_run_id} | ended(end, now) for one, end in news if one.module_run_id is not None
    ]
    if measured:
        update_each(session, TrialRow, measured)
    if timed:
        update_each(session, ModuleRunRow, timed)


def credit(
    session: Session,
    lease: LeaseRow,
    outcomes: Sequence[Outcome],
    trials: int,
    closed_at: float | None,
) -> None:
    """Add outcomes, of which so many are `trials`, to what the lease and its worker, both locked, did.

    They are the last of the lease if it is closed with them.
    """
    measured = lease.measured + trials
    failures = _failures(session, lease, outcomes)
    latest_s = None if closed_at is None else _pace(lease, measured, closed_at)
    values = {"worker": lease.worker_id, "outcomes": len(outcomes), "latest_s": latest_s, **failures}
    session.execute(_credit_worker(bool(failures)), values)
    session.execute(_credit_lease(), {"lease": lease.id, "so_far": measured, "closing": closed_at})


@cache
def _credit_worker(failed: bool) -> Update:
    worker = table_of(WorkerRow)
    latest_s: BindParameter[float | None] = bindparam("latest_s", type_=Double())
    values: dict[str, Any] = {
        "trials_done": worker.c.trials_done + bindparam("outcomes"),
        # What is not known changes nothing.
        "trial_s": func.coalesce((worker.c.trial_s + latest_s) / 2, latest_s, worker.c.trial_s),
    }
    if failed:
        values["failures"] = worker.c.failures + bindparam("failed")
        values["failures_by_kind"] = bindparam("kinds")
    return update(worker).where(worker.c.id == bindparam("worker")).values(values)


@cache
def _credit_lease() -> Update:
    lease = table_of(LeaseRow)
    ours = update(lease).where(lease.c.id == bindparam("lease"))
    return ours.values(measured=bindparam("so_far"), closed_at=bindparam("closing"))


def _latency_s(measurement: Measurement) -> float | None:
    """Median seconds, None unless it went well."""
    return measurement.latency_s if measurement.run_secs else None


def _failures(session: Session, lease: LeaseRow, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    failed = Counter(outcome.value for outcome in outcomes if outcome is not Outcome.OK)
    if not failed:
        return {}
    before = session.scalar(select(WorkerRow.failures_by_kind).where(WorkerRow.id == lease.worker_id))
    kinds = dict(failed + Counter(before or {}))
    return {"failed": failed.total(), "kinds": kinds}


def _pace(lease: LeaseRow, measured: int, now: float) -> float | None:
    """A lease that was worked off tells how fast its worker is; one of a module run, or a clock that was set
    back, doesn't."""
    took_s = now - lease.taken_at
    return took_s / measured if measured and took_s > 0.0 else None
