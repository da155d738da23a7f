"""Readings of a scheduler's clock, and the repair of times in the future after the clock was set back."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from core.job import UNFINISHED
from records.storage.statements import insert_missing
from records.storage.tables import (
    ClockRow,
    DatasetRow,
    DeliveryRow,
    JobRow,
    LeaseRow,
    ModelRow,
    TokenRow,
    WorkerRow,
)
from records.webhooks import ATTEMPT_S, DELAYS_S

# Clocks of hosts may differ by this much.
MAX_SKEW_S = 60.0


@dataclass(frozen=True)
class ClockReading:
    """A host's last reading of its clock.

    `ahead_s` is epoch seconds minus the host's timer, which begins at its boot and can't be set. `jumped_at`
    is the timer when the clock was last set by more than a day, None if it never was. `seen_at` is the time
    of the reading; None if an older tunefarm stored it.
    """

    ahead_s: float
    jumped_at: float | None = None
    seen_at: float | None = None


def read(session: Session, boot_id: str) -> ClockReading | None:
    """Return the reading stored since a host's boot, or None."""
    row = session.get(ClockRow, boot_id)
    return None if row is None else ClockReading(row.ahead_s, row.jumped_at, row.seen_at)


def latest(session: Session) -> ClockReading | None:
    """Return the newest reading of all hosts and boots; None if there is none."""
    seen = select(ClockRow).where(ClockRow.seen_at.is_not(None)).order_by(ClockRow.seen_at.desc()).limit(1)
    row = session.scalars(seen).first()
    return None if row is None else ClockReading(row.ahead_s, row.jumped_at, row.seen_at)


def write(session: Session, boot_id: str, reading: ClockReading) -> None:
    """Store a host's reading, which replaces the previous one."""
    values = asdict(reading)
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


def correct_history(session: Session, now: float) -> None:
    """Correct times of the past that are too far in the future, because the clock was set back.

    Otherwise tokens would be valid for too long, uploads would be kept for too long, and what is made from
    now on would count as older. Jobs keep their order. The audit log keeps its times. Readings of clocks from
    the future are deleted.
    """
    too_late = now + MAX_SKEW_S
    made = (JobRow.created_at, JobRow.started_at, JobRow.finished_at)
    newest = [found for one in made if (found := session.scalar(select(func.max(one)))) is not None]
    back_s = max(newest, default=now) - now
    if back_s > MAX_SKEW_S:
        moved = {column: case((column > too_late, column - back_s), else_=column) for column in made}
        session.execute(update(JobRow).where(or_(*(column > too_late for column in made))).values(moved))
    used = update(TokenRow).where(TokenRow.last_used_at > too_late)
    session.execute(used.values(last_used_at=now))
    lifetime_s = TokenRow.expires_at - TokenRow.created_at
    tokens = update(TokenRow).where(TokenRow.created_at > too_late)
    session.execute(tokens.values(created_at=now, expires_at=now + lifetime_s))
    for table in (ModelRow, DatasetRow, DeliveryRow):
        session.execute(update(table).where(table.created_at > too_late).values(created_at=now))
    session.execute(update(LeaseRow).where(LeaseRow.closed_at > too_late).values(closed_at=now))
    session.execute(delete(ClockRow).where(ClockRow.seen_at > too_late))
