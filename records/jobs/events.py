"""The events of jobs, in order, for those who watch them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from records.storage.statements import lock_job, table_of
from records.storage.tables import EventRow

_INSERT = insert(table_of(EventRow)).inline()


@dataclass(frozen=True)
class Event:
    """Something that happened to a job; clients see it as `tunefarm.client.values.JobEvent`. Ids grow."""

    id: int
    kind: str
    data: dict[str, Any]
    at: float


def append(session: Session, job_id: str, kind: str, data: dict[str, Any], now: float) -> None:
    """Append an event to a job that exists. `data` must be JSON, so without NaN or infinity."""
    lock_job(session, job_id)
    append_locked(session, job_id, kind, data, now)


def append_locked(session: Session, job_id: str, kind: str, data: dict[str, Any], now: float) -> None:
    """Append an event to a job that the caller has locked."""
    # Ids are drawn under the job's lock, so that none becomes visible after a higher one of the same job: a
    # reader that goes on after the last id it saw misses nothing.
    session.execute(_INSERT, {"job_id": job_id, "kind": kind, "data": data, "at": now})


def since(session: Session, job_id: str, after_id: int, limit: int | None = None) -> list[Event]:
    """Return the job's events with an id above `after_id`, oldest first; none for an unknown job."""
    where = (EventRow.job_id == job_id, EventRow.id > after_id)
    rows = session.scalars(select(EventRow).where(*where).order_by(EventRow.id).limit(limit))
    return [Event(row.id, row.kind, row.data, row.at) for row in rows]
