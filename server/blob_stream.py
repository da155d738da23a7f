"""Stream stored blobs to clients of any speed. Each chunk is read in its own transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator

from records.storage import blobs
from records.storage.database import Database
from server.threads import Threads

# Less than the largest message that gRPC clients accept.
PIECE_BYTES = 1 << 20


async def stream_blob(database: Database, threads: Threads, sha: str, size: int) -> AsyncIterator[bytes]:
    """Yield a blob of `size` bytes in pieces of at most PIECE_BYTES.

    Raises StorageError, and BlobNotFound, also if the blob is deleted while it is streamed.
    """

    def chunk(position: int) -> bytes:
        with database.reading() as session:
            return blobs.chunk(session, sha, position)

    position = sent = 0
    while sent < size:
        data = await threads.run(chunk, position)
        position, sent = position + 1, sent + len(data)
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
