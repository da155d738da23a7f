"""`/v1/models`: uploads of models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from core.model_format import UnknownFormat, recognise
from records.jobs import models
from records.jobs.models import ModelInfo
from records.storage import blobs
from server.api.fields import Name
from server.api.uploads import Upload, received
from server.context import ContextDep, ServerContext
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/models", tags=["models"])

_CONTENT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}


class ModelBody(BaseModel):
    """A stored model; `size` is bytes."""

    sha256: str
    name: str
    size: int

    @classmethod
    def of(cls, model: ModelInfo) -> ModelBody:
        return cls(sha256=model.sha, name=model.name, size=model.size)


@router.post("", status_code=201, openapi_extra=_BODY, responses=problems(400, 408, 415))
async def upload(
    request: Request, context: ContextDep, name: Annotated[Name, Query()] = "model"
) -> ModelBody:
    """Store the model's file, which is the request's body.

    It is ONNX, a tar of a .onnx file and its weights' files, a PyTorch exported program (.pt2), StableHLO,
    TFLite, or a TVM module as JSON. Sending the same file again changes nothing.
    """
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Problem(415, "not-a-form", "Send the model's file itself as the request's body, not as a form.")
    async with received(request, context.transfers) as upload:
        stored = await context.transfers.run(_store, context, upload, name)
    request.state.audited = stored.sha256
    return stored


def _store(context: ServerContext, upload: Upload, name: str) -> ModelBody:
    try:
        recognise(upload.file)
    except UnknownFormat as error:
        raise Problem(422, "not-onnx", str(error)) from error
    blobs.upload(context.database, upload.file, upload.sha, upload.size)
    with context.database.begin() as session:
        blobs.put_file(session, upload.file, upload.sha, upload.size)
        return ModelBody.of(models.add(session, upload.sha, name, context.now()))
