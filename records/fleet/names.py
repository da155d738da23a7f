"""The owners of workers' names: one token owns a name, and one machine uses it at a time."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.worker import LOST_AFTER_S, DesiredState, WorkerState
from records.storage.tables import TokenRow, WorkerRow


@dataclass(frozen=True)
class NameClaim:
    """A session's claim to a worker's name.

    `token_id` is None if no token is needed, and for the bootstrap token: both may use every name. `boot_id`
    is empty if it is unknown.
    """

    token_id: str | None = None
    boot_id: str = ""


class NameTaken(Exception):
    """Another token owns the name, or this token may use no new names. The message says what to do next."""


class NameInUse(Exception):
    """Another machine uses the name now. The message says what to do next."""


def check_name_claim(session: Session, worker: WorkerRow, claim: NameClaim, is_new: bool, now: float) -> None:
    """Check that a session may use a worker's name. Raises NameTaken, NameInUse.

    The worker's row must be locked. `is_new`: no worker had the name before.
    """
    if claim.token_id is not None and (is_new or worker.token_id != claim.token_id):
        if not is_new and _is_valid(session, worker.token_id, now):
            raise NameTaken(
                f"the name {worker.id} belongs to another token: choose another one with --name, "
                "or revoke that token"
            )
        own = (WorkerRow.token_id == claim.token_id, WorkerRow.desired_state == DesiredState.EVICTED)
        evicted = session.scalar(select(WorkerRow.id).where(*own).order_by(WorkerRow.id).limit(1))
        if evicted is not None:
            raise NameTaken(
                f"worker {evicted} of this token is evicted, so the token brings no other names: "
                f"`tunefarm workers resume {evicted}`, or make {worker.id} a token of its own"
            )
    is_there = worker.state != WorkerState.OFFLINE and now - worker.last_seen_at <= LOST_AFTER_S
    # A claim without a boot id could come from any machine.
    if is_there and worker.boot_id and worker.boot_id != claim.boot_id:
        raise NameInUse(
            f"another machine works as {worker.id}: give one of them another name with --name; "
            f"if this board was restarted, it may connect within {LOST_AFTER_S:.0f} s"
        )


def _is_valid(session: Session, token_id: str | None, now: float) -> bool:
    unexpired = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)
    valid = (TokenRow.id == token_id, TokenRow.revoked_at.is_(None), unexpired)
    return session.scalar(select(TokenRow.id).where(*valid)) is not None
