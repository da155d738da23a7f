"""Files in the database, addressed by the SHA-256 of their content."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy.orm import Session

CHUNK_BYTES = 4 * 1024 * 1024


class BlobNotFound(KeyError):
    """No blob has this digest."""


def put(session: Session, data: bytes) -> str:
    """Store `data` unless it is already there; its SHA-256 in hex."""
    raise NotImplementedError


def get(session: Session, sha: str) -> bytes:
    """Raises BlobNotFound."""
    raise NotImplementedError


def chunks(session: Session, sha: str) -> Iterator[bytes]:
    """The blob in pieces of at most CHUNK_BYTES, read as they are asked for. Raises BlobNotFound at the call."""
    raise NotImplementedError


def size(session: Session, sha: str) -> int | None:
    """Bytes, or None when there is no such blob."""
    raise NotImplementedError
