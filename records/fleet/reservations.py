"""Reservations: for a limited time, a worker measures only the jobs that one token has submitted."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from sqlalchemy import ColumnElement, Select, bindparam, or_, select, update
from sqlalchemy.orm import Session

from records.fleet import workers
from records.storage.tables import JobRow, WorkerRow


class Reserved(Exception):
    """The worker is reserved for another token. The message says what to do next."""


def reserve(session: Session, worker_id: str, holder: str, until: float, now: float) -> None:
    """Reserve a worker for the jobs of `holder`, which is a token's id or "bootstrap".

    The same holder may reserve it again, which replaces the end. The lease that the worker holds is finished
    first. Raises WorkerNotFound, Reserved.
    """
    session.execute(select(WorkerRow.id).where(WorkerRow.id == worker_id).with_for_update())
    current = workers.get(session, worker_id).reservation
    if current is not None and current.holder != holder and current.until > now:
        raise Reserved(
            f"Worker {worker_id} is reserved for {current.name} until {utc(current.until)}: "
            f"`tunefarm workers unreserve {worker_id}` ends that"
        )
    _set(session, worker_id, holder, until)


def unreserve(session: Session, worker_id: str) -> None:
    """End a worker's reservation, if it has one. Raises WorkerNotFound."""
    workers.get(session, worker_id)
    _set(session, worker_id, None, None)


def _set(session: Session, worker_id: str, holder: str | None, until: float | None) -> None:
    values = {"reserved_for": holder, "reserved_until": until}
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(values))


def may_use() -> ColumnElement[bool]:
    """A condition on JobRow: the worker isn't reserved now, or it is for this job's token.

    `worker` and `now` are parameters of the statement.
    """
    holder = select(WorkerRow.reserved_for).where(
        WorkerRow.id == bindparam("worker"), WorkerRow.reserved_until > bindparam("now")
    )
    return or_(holder.scalar_subquery().is_(None), JobRow.submitted_by == holder.scalar_subquery())


def reserved_workers(session: Session, now: float) -> list[str]:
    """Return the ids of the workers that are reserved."""
    return list(session.scalars(_select_reserved_workers(), {"now": now}))


@cache
def _select_reserved_workers() -> Select[str]:
    return select(WorkerRow.id).where(WorkerRow.reserved_until > bindparam("now"))


def utc(at: float) -> str:
    """Return a time to the minute, such as 2026-11-27 14:05 UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
