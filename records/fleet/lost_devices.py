"""A device that was lost while it held work: those who wait for the job are told."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.jobs import events, jobs
from records.storage.tables import LeaseRow, ModuleRunRow, TrialRow

KIND = "device_lost"


def note(session: Session, lease: LeaseRow, now: float) -> None:
    """Appends an event and sets the job's message, unless everything in the lease had been reported."""
    held = _held(session, lease.id)
    if not held:
        return
    again = "candidates are built again" if lease.build else "measurements are made again"
    message = f"the worker {lease.worker_id} was lost: {held} of this job's {again}"
    data = {"worker": lease.worker_id, "held": held, "message": message}
    events.append(session, lease.job_id, KIND, data, now)
    jobs.set_message(session, lease.job_id, message)


def _held(session: Session, lease_id: str) -> int:
    """How much of a lease has not been reported."""
    counts = [
        select(func.count()).where(table.lease_id == lease_id, table.state == "leased")
        for table in (TrialRow, ModuleRunRow)
    ]
    return sum(session.scalar(count) or 0 for count in counts)
