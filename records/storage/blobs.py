"""Blobs: files in the database, addressed by the SHA-256 of their content."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import IO

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
    put_file(session, io.BytesIO(data), sha, len(data))
    return sha


def put_file(session: Session, file: IO[bytes], sha: str, size: int) -> None:
    """Store a file unless it is there, as `put` does, with one chunk of it in memory at a time.

    The file has `size` bytes, and the SHA-256 `sha`, which the caller computed before the transaction.
    """
    while not insert_missing(session, BlobRow, {"sha": sha, "size": size}, key=["sha"]):
        # Locked, so that nobody deletes it in this transaction; it may have been deleted just before.
        locked = select(BlobRow.sha).where(BlobRow.sha == sha).with_for_update(read=True, key_share=True)
        if session.scalar(locked) is not None:
            return
    file.seek(0)
    for position in range(-(-size // CHUNK_BYTES)):
        chunk = {"sha": sha, "position": position, "data": file.read(CHUNK_BYTES)}
        session.execute(insert(ChunkRow).values(chunk))


def get(session: Session, sha: str) -> bytes:
    """Return a whole blob. Raises BlobNotFound."""
    return b"".join(chunks(session, sha))


def chunks(session: Session, sha: str) -> Iterator[bytes]:
    """Yield a blob in chunks. Raises BlobNotFound."""
    total = size(session, sha)
    if total is None:
        raise BlobNotFound(f"there is no blob {sha!r}")
    for position in range(-(-total // CHUNK_BYTES)):
        yield chunk(session, sha, position)


def chunk(session: Session, sha: str, position: int) -> bytes:
    """Return the chunk at a position, from 0. Each but the last has CHUNK_BYTES. Raises BlobNotFound."""
    found = select(ChunkRow.data).where(ChunkRow.sha == sha, ChunkRow.position == position)
    data = session.scalars(found).first()
    if data is None:
        raise BlobNotFound(f"the blob {sha!r} was deleted while it was read")
    return data


def size(session: Session, sha: str) -> int | None:
    """Return the size of a blob in bytes, None if there is none."""
    return session.scalar(select(BlobRow.size).where(BlobRow.sha == sha))
