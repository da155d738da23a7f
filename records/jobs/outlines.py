"""The outlines of models, which schedulers read from the files when clients ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.model_outline import ModelOutline
from records.jobs import models
from records.storage.database import NotFound
from records.storage.statements import insert_missing
from records.storage.tables import OutlineRow

# A file that isn't read after this many attempts is refused. An attempt of more than LAPSES_S has died.
MAX_ATTEMPTS = 3
LAPSES_S = 180.0
GAVE_UP = "the file could not be read: the scheduler's process died each time"


class OutlineNotFound(NotFound):
    """No client requested this model's outline."""


@dataclass(frozen=True)
class StoredOutline:
    """A model's outline, or the `problem` why it has none. While neither is known, `outline` is None and
    `problem` is empty."""

    outline: ModelOutline | None
    problem: str


def request(session: Session, sha: str) -> None:
    """Ask for a model's outline; ask again if the file could not be read. Raises ModelNotFound."""
    models.get(session, sha)
    insert_missing(session, OutlineRow, {"model_sha": sha, "attempts": 0, "problem": ""}, key=["model_sha"])
    row = _locked(session, sha)
    if row is not None and row.problem:
        row.attempts, row.attempt_at, row.problem = 0, None, ""


def get(session: Session, sha: str) -> StoredOutline:
    """Return what is known of a model's outline. Raises OutlineNotFound."""
    row = session.get(OutlineRow, sha)
    if row is None:
        raise OutlineNotFound(f"the outline of model {sha!r} was not asked for: POST to this address first")
    outline = None if row.outline is None else msgspec.convert(row.outline, ModelOutline)
    return StoredOutline(outline, row.problem)


def waiting(session: Session, limit: int) -> Sequence[str]:
    """Return the models whose outline is still to be read."""
    found = select(OutlineRow.model_sha).where(OutlineRow.outline.is_(None), OutlineRow.problem == "")
    return session.scalars(found.limit(limit)).all()


def begin_attempt(session: Session, sha: str, now: float) -> bool:
    """Count an attempt to read a file; return False if none is due. Gives up after MAX_ATTEMPTS."""
    row = _locked(session, sha)
    if row is None or row.outline is not None or row.problem:
        return False
    # An attempt in the future means that the clock was set back.
    if row.attempt_at is not None and 0.0 <= now - row.attempt_at < LAPSES_S:
        return False
    if row.attempts >= MAX_ATTEMPTS:
        row.problem = GAVE_UP
        return False
    row.attempts, row.attempt_at = row.attempts + 1, now
    return True


def put(session: Session, sha: str, found: ModelOutline | str) -> None:
    """Store a model's outline, or the problem why it has none. Does nothing if the model is deleted."""
    row = _locked(session, sha)
    if row is not None:
        row.outline = asdict(found) if isinstance(found, ModelOutline) else None
        row.problem = "" if isinstance(found, ModelOutline) else found


def drop(session: Session, shas: Sequence[str]) -> None:
    """Delete the outlines of models."""
    session.execute(delete(OutlineRow).where(OutlineRow.model_sha.in_(shas)))


def _locked(session: Session, sha: str) -> OutlineRow | None:
    return session.scalars(select(OutlineRow).where(OutlineRow.model_sha == sha).with_for_update()).first()
