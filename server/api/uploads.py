"""Bodies of uploads. They are written to a file while they arrive, because clients may be slow and bodies
large."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

from fastapi import Request
from starlette.requests import ClientDisconnect

from server.problems import Problem
from server.threads import Threads

# Seconds without data after which an upload is ended, because others may be waiting for its place.
STALL_S = 60.0
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True)
class Upload:
    """A received body: a temporary file of `size` bytes, and their SHA-256 in hexadecimal."""

    file: IO[bytes]
    sha: str
    size: int


@asynccontextmanager
async def received(request: Request, threads: Threads) -> AsyncIterator[Upload]:
    """Receive the request's body. The file is deleted at the end. Raises Problem, OSError."""
    digest = hashlib.sha256()

    def append(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    with tempfile.TemporaryFile() as file:
        buffer = bytearray()
        chunks = aiter(request.stream())
        try:
            while True:
                async with asyncio.timeout(STALL_S):
                    buffer += await anext(chunks)
                if len(buffer) >= _WRITE_BYTES:
                    await threads.run(append, bytes(buffer))
                    buffer.clear()
        except StopAsyncIteration:
            await threads.run(append, bytes(buffer))
        except TimeoutError as error:
            detail = f"No part of the body came for {STALL_S:g} s: send it again over a better connection."
            raise Problem(408, "upload-stalled", detail) from error
        except ClientDisconnect as error:
            raise Problem(
                400, "upload-cut-short", "The connection ended before the body: send it again."
            ) from error
        yield Upload(file, digest.hexdigest(), file.tell())
