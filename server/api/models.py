"""`/v1/models` and `/v1/datasets`: uploads of models, their outlines, and inputs for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel

from core.archive_outline import MalformedArchive, zip_names
from core.model_format import UnknownFormat, recognise
from records.jobs import models, outlines
from records.jobs.models import UploadInfo, UploadKind
from records.jobs.outlines import StoredOutline
from records.storage import blobs
from server.api.fields import Name
from server.api.uploads import Upload, received
from server.context import ContextDep, ServerContext
from server.problems import Problem, problems

router = APIRouter(prefix="/v1", tags=["models"])

_CONTENT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
Sha256Path = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}


class InputBody(BaseModel):
    """An input of a model. A dimension of `shape` is an extent, or the name of a dynamic dimension, which may
    be empty. The shape is null if the file doesn't say how many dimensions the input has.
    """

    name: str
    dtype: str
    shape: list[int | str] | None


class OperatorBody(BaseModel):
    """An operator that occurs `count` times. A job fails on one that isn't `supported`."""

    name: str
    count: int
    supported: bool


class OutlineBody(BaseModel):
    """The outline of a model's file: its inputs, the names of its outputs, and its operators.

    `state` is "waiting" until a scheduler has read the file, then "done", or "failed" for a file that can't
    be read; `problem` says why.
    """

    state: Literal["waiting", "done", "failed"]
    problem: str
    format: str | None = None
    inputs: list[InputBody] = []
    outputs: list[str] = []
    operators: list[OperatorBody] = []

    @classmethod
    def of(cls, stored: StoredOutline) -> OutlineBody:
        if stored.outline is None:
            return cls(state="failed" if stored.problem else "waiting", problem=stored.problem)
        return cls.model_validate(asdict(stored.outline) | {"state": "done", "problem": ""})


class UploadBody(BaseModel):
    """A stored model or dataset; `size` is bytes."""

    sha256: str
    name: str
    size: int

    @classmethod
    def of(cls, stored: UploadInfo) -> UploadBody:
        return cls(sha256=stored.sha, name=stored.name, size=stored.size)


@router.post("/models", status_code=201, openapi_extra=_BODY, responses=problems(400, 408, 415))
async def upload(
    request: Request, context: ContextDep, name: Annotated[Name, Query()] = "model"
) -> UploadBody:
    """Store the model's file, which is the request's body.

    It is ONNX, a tar of a .onnx file and its weights' files, a PyTorch exported program (.pt2), StableHLO,
    TFLite, or a TVM module as JSON. Sending the same file again changes nothing.
    """
    return await _receive(request, context, name, UploadKind.MODEL)


@router.post("/models/{sha}/outline", status_code=202, responses=problems(404))
def request_outline(sha: Sha256Path, context: ContextDep) -> OutlineBody:
    """Ask a scheduler to read the inputs and operators of an uploaded model, before any job.

    Poll the same address by GET until its `state` isn't "waiting".
    """
    with context.database.begin() as session:
        outlines.request(session, sha)
        stored = outlines.get(session, sha)
    if stored.outline is None:
        context.wake("outline", sha)
    return OutlineBody.of(stored)


@router.get("/models/{sha}/outline", responses=problems(404))
def show_outline(sha: Sha256Path, context: ContextDep) -> OutlineBody:
    """Return the inputs and operators of an uploaded model, as far as they are known."""
    with context.database.reading() as session:
        return OutlineBody.of(outlines.get(session, sha))


@router.post("/datasets", status_code=201, openapi_extra=_BODY, responses=problems(400, 408, 415))
async def upload_dataset(
    request: Request, context: ContextDep, name: Annotated[Name, Query()] = "data"
) -> UploadBody:
    """Store inputs of a model: an .npz file, which is the request's body, with an array for each input.

    Samples lie along the first axis. Sending the same file again changes nothing.
    """
    return await _receive(request, context, name, UploadKind.DATASET)


async def _receive(request: Request, context: ServerContext, name: str, kind: UploadKind) -> UploadBody:
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Problem(415, "not-a-form", "Send the file itself as the request's body, not as a form.")
    async with received(request, context.transfers) as upload:
        stored = await context.transfers.run(_store, context, upload, name, kind)
    request.state.audited = stored.sha256
    return stored


def _store(context: ServerContext, upload: Upload, name: str, kind: UploadKind) -> UploadBody:
    if kind is UploadKind.DATASET:
        _check_dataset(upload)
    else:
        try:
            recognise(upload.file)
        except UnknownFormat as error:
            raise Problem(422, "not-onnx", str(error)) from error
    blobs.upload(context.database, upload.file, upload.sha, upload.size)
    with context.database.begin() as session:
        blobs.put_file(session, upload.file, upload.sha, upload.size)
        return UploadBody.of(models.add(session, upload.sha, name, context.now(), kind))


def _check_dataset(upload: Upload) -> None:
    """Raise Problem for a file that can't be an .npz file. Its arrays are read in a child process later."""
    try:
        names = [*zip_names(upload.file)]
    except MalformedArchive as error:
        raise Problem(422, "not-npz", f"This is no .npz file: {error}. Save it by numpy.savez.") from error
    if not names or not all(name.endswith(".npy") for name in names):
        detail = "This zip archive holds other files than arrays: save the inputs by numpy.savez."
        raise Problem(422, "not-npz", detail)
