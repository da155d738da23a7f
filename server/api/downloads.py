"""Answer requests with stored files."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from records.storage import blobs
from records.storage.blobs import BlobNotFound
from server.blob_stream import stream_blob
from server.context import ServerContext


async def file_answer(context: ServerContext, sha: str, name: str, media_type: str) -> Response:
    """Return a stored file as an attachment with this name. Raises BlobNotFound."""

    def find() -> int | None:
        with context.database.reading() as session:
            return blobs.size(session, sha)

    size = await run_in_threadpool(find)
    if size is None:
        raise BlobNotFound(f"{name} was deleted just now")
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(size),
        "ETag": f'"{sha}"',
    }
    chunks = stream_blob(context.database, context.transfers, sha, size)
    return StreamingResponse(chunks, media_type=media_type, headers=headers)
