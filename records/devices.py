"""Device classes, and the workers that measure on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records.database import NotFound
from records.statements import changed, insert_missing
from records.tables import DeviceClassRow, FencedSessionRow, LeaseRow, WorkerRow
from search.device import Device


class WorkerState(StrEnum):
    PROBING = "probing"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"


class DeviceClassNotFound(NotFound):
    """No device class has this key."""


class SessionFenced(Exception):
    """A newer session of the same worker has taken this one's place."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as last seen. `trials_done` counts what it reported, `failures` what of that was not OK."""

    id: str
    session_id: str
    device_class: str | None
    device_name: str | None
    state: WorkerState
    last_seen_at: float
    trials_done: int
    failures: int


def put_class(session: Session, device: Device) -> None:
    """Store a device class unless it is already there."""
    row = {"key": device.key, "name": device.name, "device": device.to_json(), "target": device.target}
    insert_missing(session, DeviceClassRow, row, key=["key"])


def get_class(session: Session, key: str) -> Device:
    """Raises DeviceClassNotFound."""
    text = session.scalar(select(DeviceClassRow.device).where(DeviceClassRow.key == key))
    if text is None:
        raise DeviceClassNotFound(f"there is no device class {key!r}")
    return Device.from_json(text)


def classes(session: Session) -> list[Device]:
    """By name."""
    rows = session.scalars(select(DeviceClassRow.device).order_by(DeviceClassRow.name, DeviceClassRow.key))
    return [Device.from_json(text) for text in rows]


def resolve_class(session: Session, target: str) -> Device | None:
    """The device class meant by a key, by a name that only one has, or by "native".

    "native" is the class of the worker seen last among those that are ready or busy.
    """
    if target == "native":
        key = _native(session)
        return None if key is None else get_class(session, key)
    named = select(DeviceClassRow.device)
    by_key = session.scalar(named.where(DeviceClassRow.key == target))
    if by_key is not None:
        return Device.from_json(by_key)
    by_name = session.scalars(named.where(DeviceClassRow.name == target).limit(2)).all()
    return Device.from_json(by_name[0]) if len(by_name) == 1 else None


def register(
    session: Session, worker_id: str, session_id: str, device: Device | None, state: WorkerState, now: float
) -> str | None:
    """Make this the worker's session; the older session that it fences off, if any, whose leases expire now.

    Repeating it updates the device (None keeps it), state and time. Raises SessionFenced when a newer session
    has taken this one's place.
    """
    if _is_fenced(session, worker_id, session_id):
        raise SessionFenced(f"worker {worker_id!r} has a newer session than {session_id!r}")
    older = _enter(session, worker_id, session_id, state, now)
    values: dict[str, object] = {"session_id": session_id, "state": state, "last_seen_at": now}
    if device is not None:
        put_class(session, device)
        values["device_class"] = device.key
    elif older is not None:
        # The worker may have come back on other hardware: it has no class until it has probed again.
        values["device_class"] = None
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(values))
    if older is not None:
        _fence(session, worker_id, older, now)
    return older


def seen(session: Session, worker_id: str, session_id: str, state: WorkerState, now: float) -> bool:
    """Note a sign of life; False, and nothing changed, when this is not the worker's session."""
    where = (WorkerRow.id == worker_id, WorkerRow.session_id == session_id)
    return changed(session, update(WorkerRow).where(*where).values(state=state, last_seen_at=now)) == 1


def workers(session: Session) -> list[WorkerInfo]:
    """By id."""
    named = select(WorkerRow, DeviceClassRow.name).outerjoin(
        DeviceClassRow, DeviceClassRow.key == WorkerRow.device_class
    )
    return [_info(row, name) for row, name in session.execute(named.order_by(WorkerRow.id))]


def _native(session: Session) -> str | None:
    ready = WorkerRow.state.in_((WorkerState.READY, WorkerState.BUSY))
    newest = select(WorkerRow.device_class).where(ready, WorkerRow.device_class.is_not(None))
    return session.scalar(newest.order_by(WorkerRow.last_seen_at.desc(), WorkerRow.id).limit(1))


def _is_fenced(session: Session, worker_id: str, session_id: str) -> bool:
    fenced = select(FencedSessionRow.fenced_at).filter_by(worker_id=worker_id, session_id=session_id)
    return session.scalar(fenced) is not None


def _enter(session: Session, worker_id: str, session_id: str, state: WorkerState, now: float) -> str | None:
    """Make sure that the worker has a row; the other session that the row is of, if it is."""
    row = {"id": worker_id, "session_id": session_id, "state": state, "last_seen_at": now}
    insert_missing(session, WorkerRow, row | {"trials_done": 0, "failures": 0}, key=["id"])
    current = select(WorkerRow.session_id).where(WorkerRow.id == worker_id)
    held = session.scalars(current.with_for_update()).one()
    return None if held == session_id else held


def _fence(session: Session, worker_id: str, session_id: str, now: float) -> None:
    fenced = {"worker_id": worker_id, "session_id": session_id, "fenced_at": now}
    insert_missing(session, FencedSessionRow, fenced, key=["worker_id", "session_id"])
    theirs = (LeaseRow.worker_id == worker_id, LeaseRow.session_id == session_id)
    running = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    session.execute(update(LeaseRow).where(*theirs, *running).values(expires_at=now))


def _info(row: WorkerRow, device_name: str | None) -> WorkerInfo:
    return WorkerInfo(
        id=row.id,
        session_id=row.session_id,
        device_class=row.device_class,
        device_name=device_name,
        state=WorkerState(row.state),
        last_seen_at=row.last_seen_at,
        trials_done=row.trials_done,
        failures=row.failures,
    )
