"""Temporary copies of stored blobs, from which HTTP and gRPC stream them to slow clients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from sqlalchemy.orm import Session

from records.storage import blobs

_CHUNK_BYTES = 1 << 20


def copy_of_blob(session: Session, sha: str) -> IO[bytes]:
    """Copy a blob to a temporary file, so that the transaction ends before the client has read it all.

    Raises BlobNotFound.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - `read_and_close` closes it
    try:
        for chunk in blobs.chunks(session, sha):
            file.write(chunk)
    except BaseException:
        file.close()
        raise
    return file


def read_and_close(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the file in chunks from its start, and close it at its end."""
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
