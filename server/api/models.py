"""`/v1/models`: models handed in."""

from __future__ import annotations

import asyncio
import tempfile
from typing import IO, Annotated

from fastapi import APIRouter, Query, Request

from records.jobs import models
from records.storage import blobs
from server.api import onnx_file
from server.api.problems import Problem, problems
from server.api.schemas import ModelBody, Name
from server.context import ContextDep, ServerContext

router = APIRouter(prefix="/v1/models", tags=["models"])

_WRITE_BYTES = 1 << 20
_ONNX_CONTENT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_ONNX_BODY = {"requestBody": {"required": True, "content": _ONNX_CONTENT}}


@router.post("", status_code=201, openapi_extra=_ONNX_BODY, responses=problems(415))
async def upload(
    request: Request, context: ContextDep, name: Annotated[Name, Query()] = "model"
) -> ModelBody:
    """Stores the ONNX file that is the request's body; sending the same file again changes nothing."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Problem(415, "not-a-form", "Send the ONNX file itself as the request's body, not as a form.")
    with tempfile.TemporaryFile() as file:
        await _receive(request, file)
        stored = await asyncio.to_thread(_store, context, file, name)
    request.state.audited = stored.sha256
    return stored


async def _receive(request: Request, file: IO[bytes]) -> None:
    waiting = bytearray()
    async for chunk in request.stream():
        waiting += chunk
        if len(waiting) >= _WRITE_BYTES:
            await asyncio.to_thread(file.write, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(file.write, bytes(waiting))


def _store(context: ServerContext, file: IO[bytes], name: str) -> ModelBody:
    complaint = onnx_file.rejection_reason(file)
    if complaint is not None:
        raise Problem(422, "not-onnx", complaint)
    file.seek(0)
    data = file.read()
    with context.database.begin() as session:
        return ModelBody.of(models.add(session, blobs.put(session, data), name, context.now()))
