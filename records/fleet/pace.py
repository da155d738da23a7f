"""What the leases tell of the workers: what each of them holds, and how fast it has been lately."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from records.storage.tables import LeaseRow

WINDOW_S = 300.0


@dataclass(frozen=True)
class Held:
    """A lease that a worker holds."""

    id: str
    worker_id: str
    taken_at: float


def trials_per_minute(session: Session, now: float) -> dict[str, float]:
    """By worker, over the last five minutes, or since its first lease in them; without the idle ones."""
    recent = or_(LeaseRow.closed_at.is_(None), LeaseRow.closed_at > now - WINDOW_S)
    sums = select(LeaseRow.worker_id, func.sum(LeaseRow.measured), func.min(LeaseRow.taken_at))
    rows = session.execute(sums.where(recent).group_by(LeaseRow.worker_id))
    return {
        worker_id: 60.0 * measured / max(now - max(first, now - WINDOW_S), 1.0)
        for worker_id, measured, first in rows
    }


def held(session: Session, now: float) -> list[Held]:
    """The leases that are open and whose time is not up, the oldest first."""
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    leases = select(LeaseRow.id, LeaseRow.worker_id, LeaseRow.taken_at).where(*live)
    return [Held(*row) for row in session.execute(leases.order_by(LeaseRow.taken_at, LeaseRow.id))]
