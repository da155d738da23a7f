"""What a result becomes: a finished trial, a record, a mark in the book of the worker that measured it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from records import schedules
from records.tables import DeviceClassRow, JobRow, LeaseRow, TrialRow, WorkerRow
from records.trials import Trial, trial_of
from search.measurement import Measurement, Outcome


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


def add_records(session: Session, trial_ids: Sequence[int], now: float) -> None:
    """Store what these trials have measured among the records of their device class."""
    measured = (
        select(TrialRow, DeviceClassRow.key, DeviceClassRow.target)
        .join(JobRow, JobRow.id == TrialRow.job_id)
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(TrialRow.id.in_(trial_ids))
    )
    found = session.execute(measured)
    records = [_record(trial_of(row), device_class, target, now) for row, device_class, target in found]
    schedules.put_measured(session, records)


def count(session: Session, lease: LeaseRow, outcomes: Sequence[Outcome], trials: int) -> None:
    """Add outcomes, of which so many are `trials`, to what the lease and its worker, both locked, did."""
    ours = WorkerRow.id == lease.worker_id
    failed = Counter(outcome.value for outcome in outcomes if outcome is not Outcome.OK)
    before = session.scalar(select(WorkerRow.failures_by_kind).where(ours))
    totals = {
        "trials_done": WorkerRow.trials_done + len(outcomes),
        "failures": WorkerRow.failures + failed.total(),
        "failures_by_kind": dict(failed + Counter(before or {})),
    }
    session.execute(update(WorkerRow).where(ours).values(totals))
    measured = update(LeaseRow).where(LeaseRow.id == lease.id)
    session.execute(measured.values(measured=LeaseRow.measured + trials))


def note_pace(session: Session, lease: LeaseRow, now: float) -> None:
    """A lease that was worked off tells how fast its worker is; one of a module run, or a clock that was set
    back, doesn't."""
    measured = session.scalar(select(LeaseRow.measured).where(LeaseRow.id == lease.id))
    took_s = now - lease.taken_at
    if not measured or took_s <= 0.0:
        return
    latest_s = took_s / measured
    pace = func.coalesce((WorkerRow.trial_s + latest_s) / 2, latest_s)
    session.execute(update(WorkerRow).where(WorkerRow.id == lease.worker_id).values(trial_s=pace))


def _record(trial: Trial, device_class: str, target: str, now: float) -> schedules.Record:
    return schedules.Record(
        workload_hash=trial.workload_hash,
        device_class=device_class,
        trace=trial.trace,
        program=trial.program,
        latency_s=trial.latency_s,
        run_secs=trial.run_secs,
        outcome=trial.outcome or Outcome.UNKNOWN,
        target=target,
        source="trial",
        created_at=now,
    )
