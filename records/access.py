"""Tokens and the audit log. Only the digests of tokens' secrets are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from core.tokens import WARNED_BEFORE_S, Scope
from records.storage.database import NotFound
from records.storage.ids import only_id
from records.storage.statements import changed
from records.storage.tables import AuditRow, TokenRow

# `last_used_at` may be this many seconds old, so that calls don't update a token's row every time.
LAST_USED_PRECISION_S = 600.0


class TokenNotFound(NotFound):
    """No token has this id."""


@dataclass(frozen=True)
class Token:
    """A token without its secret. If `expires_at` is None, it never expires."""

    id: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.scopes:
            raise ValueError("a token has a name and at least one scope")

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True)
class AuditEntry:
    """An action that was done or refused.

    `who` is a token's id, "bootstrap", "loopback" or "nobody". `subject` is the object of the action,
    `outcome` a status, `address` the caller's address.
    """

    who: str
    action: str
    subject: str
    outcome: str
    address: str


@dataclass(frozen=True)
class AuditLine:
    """A line of the log: an action that happened `times` times, the last time at `at`. Later lines have
    larger ids."""

    id: int
    at: float
    entry: AuditEntry
    times: int


def add_token(session: Session, token: Token, sha: str) -> None:
    """Store a new token. `sha` is the SHA-256 of its secret."""
    row = {
        "id": token.id,
        "name": token.name,
        "sha": sha,
        "scopes": sorted(token.scopes),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }
    session.execute(insert(TokenRow).values(row))


def use_token(session: Session, sha: str, now: float) -> Token | None:
    """Return the token whose secret has this SHA-256, even if it is expired or revoked, and note its use."""
    row = session.scalar(select(TokenRow).where(TokenRow.sha == sha))
    if row is None:
        return None
    long_ago = or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at <= now - LAST_USED_PRECISION_S)
    used = update(TokenRow).where(TokenRow.id == row.id, TokenRow.revoked_at.is_(None), long_ago)
    session.execute(used.values(last_used_at=now))
    return _token(row)


def valid_digests(session: Session, now: float) -> frozenset[str]:
    """Return the SHA-256 digests of all tokens that are neither revoked nor expired."""
    return frozenset(session.scalars(select(TokenRow.sha).where(*_is_valid(now))))


def valid_ids(session: Session, named: str, now: float) -> list[str]:
    """Return the ids of the valid tokens that have this id or name."""
    is_named = or_(TokenRow.id == named, TokenRow.name == named)
    return list(session.scalars(select(TokenRow.id).where(is_named, *_is_valid(now)).order_by(TokenRow.id)))


def tokens(session: Session) -> list[Token]:
    """Return all tokens, newest first."""
    newest = select(TokenRow).order_by(TokenRow.created_at.desc(), TokenRow.id.desc())
    return [_token(row) for row in session.scalars(newest)]


def ending_tokens(session: Session, now: float) -> list[Token]:
    """Return the valid tokens that expire within WARNED_BEFORE_S, in the order in which they expire."""
    query = select(TokenRow).where(*_ends_soon(now)).order_by(TokenRow.expires_at)
    return [_token(row) for row in session.scalars(query)]


def count_ending_tokens(session: Session, now: float) -> int:
    """Count the valid tokens that expire within WARNED_BEFORE_S."""
    return session.scalar(select(func.count()).select_from(TokenRow).where(*_ends_soon(now))) or 0


def _is_valid(now: float) -> tuple[ColumnElement[bool], ...]:
    return TokenRow.revoked_at.is_(None), or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)


def _ends_soon(now: float) -> tuple[ColumnElement[bool], ...]:
    ends_at = TokenRow.expires_at
    return TokenRow.revoked_at.is_(None), ends_at > now, ends_at <= now + WARNED_BEFORE_S


def full_id(session: Session, start: str) -> str:
    """Return the only id that begins with `start`, or `start` if none does. Raises TokenNotFound if several
    do."""
    return only_id(session, TokenRow.id, start, TokenNotFound)


def revoke_token(session: Session, token_id: str, now: float) -> Token:
    """Revoke a token. Revoking it again changes nothing. Raises TokenNotFound."""
    valid = (TokenRow.id == token_id, TokenRow.revoked_at.is_(None))
    session.execute(update(TokenRow).where(*valid).values(revoked_at=now))
    row = session.scalar(select(TokenRow).where(TokenRow.id == token_id))
    if row is None:
        raise TokenNotFound(f"there is no token {token_id!r}")
    return _token(row)


def append_audit(session: Session, entries: Mapping[AuditEntry, int], at: float) -> None:
    """Store one line for each action, with the number of times that it happened."""
    for entry, times in entries.items():
        session.execute(insert(AuditRow).values(**vars(entry), at=at, times=times))


def audit(session: Session, limit: int, before: int | None = None) -> list[AuditLine]:
    """Return lines of the audit log with an id below `before`, newest first."""
    newest = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    rows = session.scalars(newest if before is None else newest.where(AuditRow.id < before))
    return [
        AuditLine(
            row.id, row.at, AuditEntry(row.who, row.action, row.subject, row.outcome, row.address), row.times
        )
        for row in rows
    ]


def prune_audit(session: Session, before_at: float, limit: int) -> int:
    """Delete up to `limit` lines older than `before_at`, oldest first; return their number."""
    old = select(AuditRow.id).where(AuditRow.at < before_at).order_by(AuditRow.id).limit(limit)
    return changed(session, delete(AuditRow).where(AuditRow.id.in_(old)))


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=frozenset(map(Scope, row.scopes)),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
