"""Blobs: files addressed by the SHA-256 of their content, in the database or in a blob store.

New blobs go to the blob store if one is set. Older blobs stay in the database and are read from there.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from typing import IO, NamedTuple

from sqlalchemy import and_, delete, select
from sqlalchemy.orm import Session

from records.storage.blob_store import VARIABLE, BlobStore
from records.storage.database import Database, NotFound, StorageError
from records.storage.statements import insert_missing
from records.storage.tables import BlobRow, ChunkRow

CHUNK_BYTES = 4 * 1024 * 1024


class BlobNotFound(NotFound):
    """No blob has this digest."""


def upload(database: Database, file: IO[bytes], sha: str, size: int) -> None:
    """Write a file before `put` or `put_file` stores it, so that their transaction is short.

    It goes to the blob store if there is one. In the database, each chunk is stored in a transaction of its
    own: other writers wait for one chunk, not for the file. Raises StorageError.
    """
    if database.blob_store is not None:
        with database.reading() as session:
            if session.scalar(select(BlobRow.sha).where(BlobRow.sha == sha)) is not None:
                return
        database.blob_store.write(file, sha, size)
        return
    for position in range(size // CHUNK_BYTES):  # their transaction writes the last chunk
        with database.begin() as session:
            if not _lock_row(session, sha, size, external=False).external:
                _put_chunk(session, file, sha, position)


def stage(database: Database, file: IO[bytes]) -> tuple[str, int]:
    """Upload a file. Return its SHA-256 in hexadecimal and its size, the arguments of `put_file`.

    Raises StorageError.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    sha = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # any file that is read
    upload(database, file, sha, size)
    return sha, size


def put(session: Session, data: bytes | IO[bytes]) -> str:
    """Store bytes or a whole file, unless it is stored already. Return its SHA-256 in hexadecimal.

    A blob without a reference when the transaction ends may be deleted at any time.
    """
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    sha = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # any file that is read
    put_file(session, file, sha, size)
    return sha


def put_file(session: Session, file: IO[bytes], sha: str, size: int) -> None:
    """Store a file as `put` does, with one chunk in memory at a time.

    The file has `size` bytes, and the SHA-256 `sha`, which the caller computed before the transaction.
    """
    store = _store(session)
    row = _lock_row(session, sha, size, external=store is not None)
    if row.external:
        if store is not None and row.is_new:
            # From here on, the row keeps `sweep` from deleting the file.
            store.write(file, sha, size)
        return
    present = set(session.scalars(select(ChunkRow.position).where(ChunkRow.sha == sha)))
    for position in range(-(-size // CHUNK_BYTES)):
        if position not in present:
            _put_chunk(session, file, sha, position)


class _Row(NamedTuple):
    """A blob's row: whether it is new, and whether the blob is in the blob store."""

    is_new: bool
    external: bool


def _lock_row(session: Session, sha: str, size: int, *, external: bool) -> _Row:
    """Insert a blob's row if it is missing, and lock it: the blob can't be deleted before the transaction
    ends."""
    row = {"sha": sha, "size": size, "external": external}
    while not insert_missing(session, BlobRow, row, key=["sha"]):
        locked = select(BlobRow.external).where(BlobRow.sha == sha)
        found = session.scalar(locked.with_for_update(read=True, key_share=True))
        if found is not None:  # it may have been deleted before the lock
            return _Row(False, found)
    return _Row(True, external)


def _put_chunk(session: Session, file: IO[bytes], sha: str, position: int) -> None:
    file.seek(position * CHUNK_BYTES)
    chunk = {"sha": sha, "position": position, "data": file.read(CHUNK_BYTES)}
    insert_missing(session, ChunkRow, chunk, key=["sha", "position"])


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
    """Return the chunk at a position, from 0. Each but the last has CHUNK_BYTES.

    Raises BlobNotFound, and StorageError if the blob has become shorter.
    """
    own = and_(ChunkRow.sha == BlobRow.sha, ChunkRow.position == position)
    columns = select(BlobRow.size, BlobRow.external, ChunkRow.data)
    found = session.execute(columns.outerjoin(ChunkRow, own).where(BlobRow.sha == sha)).first()
    blob_bytes, external, data = (0, False, None) if found is None else found
    if data is None and external:
        store = _store(session)
        if store is None:
            raise StorageError(f"the file {sha} lies in a blob store: set {VARIABLE} to it again")
        data = store.read(sha, position * CHUNK_BYTES, CHUNK_BYTES)
    if data is None:
        raise BlobNotFound(f"the blob {sha!r} was deleted while it was read")
    # Readers count bytes until they have all, so that an empty chunk would keep them reading for ever.
    if not data or len(data) < min(CHUNK_BYTES, blob_bytes - position * CHUNK_BYTES):
        raise StorageError(f"the file {sha} is shorter than when it was stored: restore it from a backup")
    return bytes(data)


def size(session: Session, sha: str) -> int | None:
    """Return the size of a blob in bytes, None if there is none."""
    return session.scalar(select(BlobRow.size).where(BlobRow.sha == sha))


def sweep(database: Database, written_before: float) -> int:
    """Delete files of the blob store that no row names; return their number.

    Newer files are kept, because their rows may not be committed yet. Raises StorageError.
    """
    store, count = database.blob_store, 0
    if store is None:
        return 0
    found = store.older_than(written_before)
    with database.reading() as session:
        named = set(session.scalars(select(BlobRow.sha).where(BlobRow.external)))
    for name in found:
        if name in named:
            continue
        with database.begin() as session:
            # Lock the row until the file is deleted. A transaction that stores the same blob waits, and
            # writes it again.
            row = {"sha": name, "size": 0, "external": True}
            if insert_missing(session, BlobRow, row, key=["sha"]):
                store.delete(name)
                session.execute(delete(BlobRow).where(BlobRow.sha == name))
                count += 1
    return count


def _store(session: Session) -> BlobStore | None:
    store: BlobStore | None = session.info.get("blob_store")
    return store
