"""Readings of a scheduler's clock, and the repair of times in the future after the clock was set back."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, update
from sqlalchemy.orm import Session

from core.job import UNFINISHED
from records.storage.statements import insert_missing
from records.storage.tables import ClockRow, DeliveryRow, JobRow, WorkerRow
from records.webhooks import ATTEMPT_S, DELAYS_S

# Clocks of hosts may differ by this much.
MAX_SKEW_S = 60.0


@dataclass(frozen=True)
class ClockReading:
    """A host's last reading of its clock.

    `ahead_s` is epoch seconds minus the host's timer, which begins at its boot and can't be set. `jumped_at`
    is the timer when the clock was last set by more than a day, None if it never was.
    """

    ahead_s: float
    jumped_at: float | None = None


def read(session: Session, boot_id: str) -> ClockReading | None:
    """Return the reading that was stored since a host's boot; None if there is none."""
    row = session.get(ClockRow, boot_id)
    return None if row is None else ClockReading(row.ahead_s, row.jumped_at)


def write(session: Session, boot_id: str, reading: ClockReading) -> None:
    """Store a host's reading, which replaces the previous one."""
    values = {"ahead_s": reading.ahead_s, "jumped_at": reading.jumped_at}
    if not insert_missing(session, ClockRow, {"boot_id": boot_id, **values}, key=["boot_id"]):
        session.execute(update(ClockRow).where(ClockRow.boot_id == boot_id).values(values))


def correct_future_times(session: Session, now: float, claim_s: float) -> None:
    """Set times too far in the future to `now`, because the clock was set back.

    Otherwise claims of `claim_s`, lost workers, time limits of jobs and webhook messages would wait until the
    clock reaches these times. `records.fleet.leases.expire` does the same for leases.
    """
    latest = now + MAX_SKEW_S
    # Workers are locked before jobs everywhere.
    session.execute(update(WorkerRow).where(WorkerRow.last_seen_at > latest).values(last_seen_at=now))
    claimed = update(JobRow).where(JobRow.held_until > latest + claim_s)
    session.execute(claimed.values(held_until=now))
    started = update(JobRow).where(JobRow.state.in_(UNFINISHED), JobRow.started_at > latest)
    session.execute(started.values(started_at=now))
    delay_s = case(dict(enumerate(DELAYS_S, 1)), value=DeliveryRow.attempts, else_=0.0)
    is_far = DeliveryRow.due_at > latest + ATTEMPT_S + delay_s
    waiting = update(DeliveryRow).where(DeliveryRow.state == "pending", is_far)
    session.execute(waiting.values(due_at=now))
