"""Device classes, and the workers that measure on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.orm import Session

from search.device import Device


class WorkerState(StrEnum):
    PROBING = "probing"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"


class DeviceClassNotFound(KeyError):
    """No device class has this key."""


class SessionFenced(Exception):
    """A newer session of the same worker has taken this one's place."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as last seen. `trials_done` counts its reports of any outcome, `failures` those that were not OK."""

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
    raise NotImplementedError


def get_class(session: Session, key: str) -> Device:
    """Raises DeviceClassNotFound."""
    raise NotImplementedError


def classes(session: Session) -> list[Device]:
    """By name."""
    raise NotImplementedError


def resolve_class(session: Session, target: str) -> Device | None:
    """The device class meant by "native" (that of the worker seen last among those ready), a key or a unique name."""
    raise NotImplementedError


def register(
    session: Session, worker_id: str, session_id: str, device: Device | None, state: WorkerState, now: float
) -> str | None:
    """Make this the worker's session; the older session that it fences off, if any, whose leases expire now.

    Repeating it updates the device (None keeps it), state and time. Raises SessionFenced when a newer session
    has taken this one's place.
    """
    raise NotImplementedError


def seen(session: Session, worker_id: str, session_id: str, state: WorkerState, now: float) -> bool:
    """Note a sign of life; False, and nothing changed, when this is not the worker's session."""
    raise NotImplementedError


def workers(session: Session) -> list[WorkerInfo]:
    """By id."""
    raise NotImplementedError
