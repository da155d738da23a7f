"""The events of jobs, in order, for clients that watch them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Select, delete, func, insert, select
from sqlalchemy.orm import Session, aliased

from core.job import JobState
from records.storage.statements import lock_job, table_of
from records.storage.tables import EventRow, JobRow, storable

_INSERT = insert(table_of(EventRow)).inline()
# The kind of the events with the number of finished trials. There is one every second, and only the last
# matters.
PROGRESS = "progress"
# The kind of the events with the job's new state.
STATE = "state"
# Events deleted in one transaction.
_DELETE_BATCH = 1000


@dataclass(frozen=True)
class Event:
    """A change of a job. Clients get it as `tunefarm.client.values.JobEvent`. Later events have larger
    ids."""

    id: int
    kind: str
    data: dict[str, Any]
    at: float


class JobEnd(NamedTuple):
    """The id of a job's last event (0 without one), and whether the job is finished, so that no event
    follows."""

    last_id: int
    finished: bool


def append(session: Session, job_id: str, kind: str, data: dict[str, Any], now: float) -> None:
    """Append an event to a job that exists. `data` must be valid JSON, without NaN and infinity."""
    lock_job(session, job_id)
    append_locked(session, job_id, kind, data, now)


def append_locked(session: Session, job_id: str, kind: str, data: dict[str, Any], now: float) -> None:
    """Append an event to a job that the caller has locked."""
    # Ids are assigned under the job's lock, so events of a job become visible in the order of their ids. A
    # reader that continues after the last id that it saw misses no event.
    plain = {name: storable(value) if isinstance(value, str) else value for name, value in data.items()}
    values = {"job_id": job_id, "kind": kind, "data": plain, "at": now}
    session.connection().execute(_INSERT, values)


def drop_old_progress(session: Session, job_ids: Collection[str]) -> None:
    """Delete events of progress of some jobs, but never a job's last one."""
    # SQLite would assign the id of a table's last event again, which readers may have seen.
    later = aliased(EventRow)
    last = select(func.max(later.id)).where(later.job_id == EventRow.job_id, later.kind == PROGRESS)
    old = (EventRow.kind == PROGRESS, EventRow.id < last.correlate(EventRow).scalar_subquery())
    found = select(EventRow.id).where(EventRow.job_id.in_(job_ids), *old).order_by(EventRow.id)
    # Another scheduler is deleting the locked ones.
    locked = found.limit(_DELETE_BATCH).with_for_update(skip_locked=True, of=EventRow)
    ids = session.scalars(locked).all()
    session.execute(delete(EventRow).where(EventRow.id.in_(ids)))


def latest(session: Session, job_id: str, limit: int) -> list[Event]:
    """Return up to `limit` of the job's events, newest first."""
    newest_first = select(EventRow).where(EventRow.job_id == job_id).order_by(EventRow.id.desc())
    return _events(session, newest_first.limit(limit))


def of_kinds(session: Session, job_id: str, kinds: Collection[str]) -> list[Event]:
    """Return all of the job's events of these kinds, oldest first."""
    of_kinds = (EventRow.job_id == job_id, EventRow.kind.in_(kinds))
    return _events(session, select(EventRow).where(*of_kinds).order_by(EventRow.id))


def last_of_kind(session: Session, job_id: str, kind: str) -> Event | None:
    """Return the job's newest event of a kind."""
    newest_first = select(EventRow).where(EventRow.job_id == job_id, EventRow.kind == kind)
    found = _events(session, newest_first.order_by(EventRow.id.desc()).limit(1))
    return found[0] if found else None


def since(session: Session, job_id: str, after_id: int, limit: int | None = None) -> list[Event]:
    """Return the job's events with an id above `after_id`, oldest first; none for an unknown job."""
    where = (EventRow.job_id == job_id, EventRow.id > after_id)
    return _events(session, select(EventRow).where(*where).order_by(EventRow.id).limit(limit))


def ends(session: Session, job_ids: Collection[str]) -> dict[str, JobEnd]:
    """Return the ends of jobs' events, by job, without unknown jobs."""
    # One look-up in the index for each job, however many events it has.
    last_id = select(func.max(EventRow.id)).where(EventRow.job_id == JobRow.id).scalar_subquery()
    found = session.execute(select(JobRow.id, JobRow.state, last_id).where(JobRow.id.in_(job_ids)))
    return {job_id: JobEnd(last or 0, JobState(state).finished) for job_id, state, last in found}


def _events(session: Session, query: Select[EventRow]) -> list[Event]:
    return [Event(row.id, row.kind, row.data, row.at) for row in session.scalars(query)]
