"""Blobs: files in the database, addressed by the SHA-256 of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from records.storage.database import NotFound
from records.storage.statements import insert_missing
from records.storage.tables import BlobRow, ChunkRow

CHUNK_BYTES = 4 * 1024 * 1024


class BlobNotFound(NotFound):
    """No blob has this digest."""


def put(session: Session, data: bytes) -> str:
    """Store `data` unless it is there; return its SHA-256 in hexadecimal.

    A blob that nothing refers to when the transaction ends may be deleted at any time.
    """
    sha = hashlib.sha256(data).hexdigest()
    while not insert_missing(session, BlobRow, {"sha": sha, "size": len(data)}, key=["sha"]):
        # Locked, so that nobody deletes it in this transaction; it may have been deleted just before.
        locked = select(BlobRow.sha).where(BlobRow.sha == sha).with_for_update(read=True, key_share=True)
        if session.scalar(locked) is not None:
            return sha
    for position, start in enumerate(range(0, len(data), CHUNK_BYTES)):
        chunk = {"sha": sha, "position": position, "data": data[start : start + CHUNK_BYTES]}
        session.execute(insert(ChunkRow).values(chunk))
    return sha


def get(session: Session, sha: str) -> bytes:
    """Return a whole blob. Raises BlobNotFound."""
    return b"".join(chunks(session, sha))


def chunks(session: Session, sha: str) -> Iterator[bytes]:
    """Iterate over a blob in pieces of at most CHUNK_BYTES, each read when it is needed.

    Raises BlobNotFound before the first piece is read.
    """
    total = size(session, sha)
    if total is None:
        raise BlobNotFound(f"there is no blob {sha!r}")
    return _read(session, sha, pieces=-(-total // CHUNK_BYTES))


def size(session: Session, sha: str) -> int | None:
    """Return the size of a blob in bytes, None if there is none."""
    return session.scalar(select(BlobRow.size).where(BlobRow.sha == sha))


def _read(session: Session, sha: str, pieces: int) -> Iterator[bytes]:
    for position in range(pieces):
        where = (ChunkRow.sha == sha, ChunkRow.position == position)
        chunk = session.scalars(select(ChunkRow.data).where(*where)).first()
        if chunk is None:
            raise BlobNotFound(f"the blob {sha!r} was deleted while it was read")
        yield chunk
