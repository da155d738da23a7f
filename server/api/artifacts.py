"""`/v1/artifacts`: compiled models by what they are of, without a job's id."""

from __future__ import annotations

import statistics
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from records.jobs import jobs
from records.jobs.jobs import Job
from records.storage import blobs
from records.storage.blobs import BlobNotFound
from server.api.fields import Name, Sha256
from server.api.targets import NATIVE, device_class
from server.blob_stream import stream_blob
from server.conditional import NOT_MODIFIED, headers_of, is_current
from server.context import ContextDep, ServerContext
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/artifacts", tags=["schedules"])

TAR_ANSWER = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}
_SHAPE = "NAME=1,3,224,224, the shape of a dynamic input; needed where the model was tuned for several"


@router.get(
    "/best",
    response_class=StreamingResponse,
    responses={200: TAR_ANSWER, **NOT_MODIFIED, **problems(404, 409)},
)
def best(
    request: Request,
    context: ContextDep,
    model: Annotated[Sha256, Query()],
    target: Annotated[Name, Query()] = NATIVE,
    shape: Annotated[list[Name] | None, Query(description=_SHAPE)] = None,
    exact: Annotated[bool, Query(description="without variants that round differently")] = False,
    tf32: Annotated[bool, Query(description="also models that may compute in TF32")] = False,
) -> Response:
    """Return the fastest compiled model as a tar file of `model.so` and `manifest.json`.

    That is what the last job published, because each is timed against what was published before. With the
    answer's ETag in If-None-Match, 304 says that it still holds. The headers Tunefarm-Job,
    Tunefarm-Device-Class and Tunefarm-Latency-S (seconds) tell where it is from and how fast it is there.
    """
    asked_shapes = _parsed_shapes(shape or [])
    with context.database.reading() as session:
        key = device_class(session, target, context.now())
        found = jobs.published(session, model, key, exact=exact, tf32=tf32)
        shapes = {tuple(sorted(job.request.shapes.items())) for job in found}
        if asked_shapes is not None:
            found = [job for job in found if job.request.shapes == asked_shapes]
        elif len(shapes) > 1:
            listed = "; ".join(sorted(map(_shapes_text, shapes)))
            detail = f"The model was tuned for several shapes, say which by shape=NAME=1,3,224,224: {listed}."
            raise Problem(409, "shapes-needed", detail)
        if not found:
            detail = f"Nothing was compiled of model {model} for {key}, as asked for: start a job."
            raise Problem(404, "no-artifact", detail)
    return artifact_answer(context, found[0], request)


def artifact_answer(context: ServerContext, job: Job, request: Request) -> Response:
    """Return the artifact that a job published, or 304 when the client has it."""
    assert job.artifact_sha is not None, "the job has published"
    headers = headers_of(f'"{job.artifact_sha}"') | {"Tunefarm-Job": job.id}
    headers["Tunefarm-Device-Class"] = job.device_class or ""
    if job.tuned_s or job.untuned_s:
        fastest = min(statistics.median(secs) for secs in (job.tuned_s, job.untuned_s) if secs)
        headers["Tunefarm-Latency-S"] = f"{fastest:.9g}"
    if is_current(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    with context.database.reading() as session:
        size = blobs.size(session, job.artifact_sha)
    if size is None:
        raise BlobNotFound(f"the artifact of job {job.id} was deleted just now")
    headers["Content-Disposition"] = f'attachment; filename="{job.id}.tar"'
    headers["Content-Length"] = str(size)
    chunks = stream_blob(context.database, context.transfers, job.artifact_sha, size)
    return StreamingResponse(chunks, media_type="application/x-tar", headers=headers)


def _parsed_shapes(texts: list[str]) -> dict[str, tuple[int, ...]] | None:
    """Return shapes by input name, None without any. Raises Problem."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, extents = text.rpartition("=")
        try:
            shapes[name] = tuple(int(extent) for extent in extents.split(","))
        except ValueError as error:
            detail = f"shape={text} is not understood: write shape=NAME=1,3,224,224."
            raise Problem(422, "invalid-request", detail) from error
    return shapes or None


def _shapes_text(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    named = (f"{name}={','.join(map(str, extents))}" for name, extents in shapes)
    return " ".join(named) or "those of the model itself"
