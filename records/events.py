"""What happened to a job, in order, for those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session


@dataclass(frozen=True)
class Event:
    """Ids grow; `at` is seconds since the epoch."""

    id: int
    kind: str
    data: dict[str, Any]
    at: float


def append(session: Session, job_id: str, kind: str, data: dict[str, Any], now: float) -> None:
    """Raises JobNotFound."""
    raise NotImplementedError


def since(session: Session, job_id: str, after_id: int, limit: int) -> list[Event]:
    """The job's events with an id above `after_id`, oldest first; none for an unknown job."""
    raise NotImplementedError
