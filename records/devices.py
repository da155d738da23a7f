"""Device classes: devices with equal hardware and toolchain, and their profiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlalchemy import ColumnElement, Select, and_, or_, select, update
from sqlalchemy.orm import Session

from core.device import Device
from core.profile import Profile
from core.worker import LOST_AFTER_S, DesiredState, WorkerState
from records.storage.database import NotFound
from records.storage.statements import insert_missing
from records.storage.tables import DeviceClassRow, WorkerRow


class DeviceClassNotFound(NotFound):
    """No device class has this key."""


def may_work() -> ColumnElement[bool]:
    """A condition on WorkerRow: the worker is ready or busy, and nobody stopped it. It may be silent."""
    is_able = WorkerRow.state.in_((WorkerState.READY, WorkerState.BUSY))
    return and_(is_able, WorkerRow.desired_state == DesiredState.WORK)


def put_class(session: Session, device: Device, calibrated: bool = False) -> None:
    """Store a device class if it is new, and its profile if it has none.

    If the device was `calibrated` just now, its profile replaces the stored one.
    """
    row = {
        "key": device.key,
        "name": device.name,
        "device": device.to_json(),
        "target": device.target,
        "platform": device.platform,
        "cores": device.cores,
        "toolchain": device.toolchain,
    }
    insert_missing(session, DeviceClassRow, row, key=["key"])
    if device.profile is not None:
        stored = update(DeviceClassRow).where(DeviceClassRow.key == device.key)
        if not calibrated:
            stored = stored.where(DeviceClassRow.profile.is_(None))
        session.execute(stored.values(profile=device.profile.to_json()))


def get_class(session: Session, key: str) -> Device:
    """Return a device class. Raises DeviceClassNotFound."""
    found = session.execute(_select_classes().where(DeviceClassRow.key == key)).first()
    if found is None:
        raise DeviceClassNotFound(f"there is no device class {key!r}")
    return _device(*found)


def classes(session: Session) -> list[Device]:
    """Return every device class, by name."""
    rows = session.execute(_select_classes().order_by(DeviceClassRow.name, DeviceClassRow.key))
    return [_device(*row) for row in rows]


def names(session: Session) -> dict[str, str]:
    """Return the names of the device classes by key. The key follows a name that several classes have."""
    known = classes(session)
    count = Counter(one.name for one in known)
    return {one.key: one.name if count[one.name] == 1 else one.title for one in known}


def resolve_class(
    session: Session, target: str, now: float, submitted_by: str | None = None
) -> Device | None:
    """Return the device class that `target` means: a key, a name that only one class has, or "native".

    "native" is the class of the worker seen last among connected workers that are ready or busy and may work.
    If the job's token `submitted_by` is given, workers that are reserved for another token don't count.
    """
    if target == "native":
        is_there = (WorkerRow.last_seen_at >= now - LOST_AFTER_S, WorkerRow.device_class.is_not(None))
        keys = select(WorkerRow.device_class).where(may_work(), *is_there)
        if submitted_by is not None:
            is_free = or_(WorkerRow.reserved_until.is_(None), WorkerRow.reserved_until <= now)
            keys = keys.where(or_(is_free, WorkerRow.reserved_for == submitted_by))
        newest = session.scalar(keys.order_by(WorkerRow.last_seen_at.desc(), WorkerRow.id).limit(1))
        return None if newest is None else get_class(session, newest)
    by_key = session.execute(_select_classes().where(DeviceClassRow.key == target)).first()
    if by_key is not None:
        return _device(*by_key)
    by_name = session.execute(_select_classes().where(DeviceClassRow.name == target).limit(2)).all()
    return _device(*by_name[0]) if len(by_name) == 1 else None


def _select_classes() -> Select[str, str | None]:
    return select(DeviceClassRow.device, DeviceClassRow.profile)


def _device(text: str, profile: str | None) -> Device:
    return replace(Device.from_json(text), profile=None if profile is None else Profile.from_json(profile))
