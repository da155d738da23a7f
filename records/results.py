"""What a result becomes: a finished trial, a record, a mark in the book of the worker that measured it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from records.tables import LeaseRow, WorkerRow
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


def latency_s(measurement: Measurement) -> float | None:
    """Median seconds, None unless it went well."""
    return measurement.latency_s if measurement.run_secs else None


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
    values: dict[str, Any] = {"trials_done": WorkerRow.trials_done + len(outcomes)}
    values |= _failures(session, lease, outcomes)
    if closed_at is not None:
        values |= _pace(lease, measured, closed_at)
    session.execute(update(WorkerRow).where(WorkerRow.id == lease.worker_id).values(values))
    ours = update(LeaseRow).where(LeaseRow.id == lease.id)
    session.execute(ours.values(measured=measured, closed_at=closed_at))


def _failures(session: Session, lease: LeaseRow, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    failed = Counter(outcome.value for outcome in outcomes if outcome is not Outcome.OK)
    if not failed:
        return {}
    before = session.scalar(select(WorkerRow.failures_by_kind).where(WorkerRow.id == lease.worker_id))
    kinds = dict(failed + Counter(before or {}))
    return {"failures": WorkerRow.failures + failed.total(), "failures_by_kind": kinds}


def _pace(lease: LeaseRow, measured: int, now: float) -> dict[str, Any]:
    """A lease that was worked off tells how fast its worker is; one of a module run, or a clock that was set
    back, doesn't."""
    took_s = now - lease.taken_at
    if not measured or took_s <= 0.0:
        return {}
    latest_s = took_s / measured
    return {"trial_s": func.coalesce((WorkerRow.trial_s + latest_s) / 2, latest_s)}
