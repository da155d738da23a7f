"""`/v1/artifacts`: compiled models by model and device class, without a job's id."""

from __future__ import annotations

import json
import statistics
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from core.job import Quantize
from records import devices
from records.jobs import jobs
from records.jobs.jobs import Job
from records.storage import blobs
from records.storage.blobs import BlobNotFound
from server.api.bundles import bundle_of, manifest_text, repr_digest
from server.api.fields import Name, Sha256
from server.api.targets import NATIVE, device_class
from server.blob_stream import stream_blob
from server.conditional import NOT_MODIFIED, headers_of, is_current
from server.context import ContextDep, ServerContext
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/artifacts", tags=["schedules"])

TAR_ANSWER = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}
Bundled = Annotated[
    bool, Query(description="with the runtime libraries and the C and C++ sources that run the model")
]
_SHAPE = "NAME=1,3,224,224, the shape of an input; needed if the model was tuned for several"
Shapes = Mapping[str, tuple[int, ...]]


@router.get(
    "/best",
    response_class=StreamingResponse,
    responses={200: TAR_ANSWER, **NOT_MODIFIED, **problems(404, 409)},
)
async def best(
    request: Request,
    context: ContextDep,
    model: Annotated[Sha256, Query()],
    target: Annotated[Name, Query()] = NATIVE,
    shape: Annotated[list[Name] | None, Query(description=_SHAPE)] = None,
    exact: Annotated[bool, Query(description="without variants that round differently")] = False,
    tf32: Annotated[bool, Query(description="also models that may compute in TF32")] = False,
    quantize: Annotated[Quantize, Query(description="as the job quantized it")] = Quantize.NONE,
    bundle: Bundled = False,
) -> Response:
    """Return the fastest compiled model as a tar file of `model.so` and `manifest.json`.

    The last job published it, because each artifact is timed in turns with the previous one. A request with
    the ETag in If-None-Match gets 304 while there is nothing faster. The headers Tunefarm-Job,
    Tunefarm-Version, Tunefarm-Device-Class and Tunefarm-Latency-S (seconds) describe the artifact.
    Repr-Digest has the SHA-256 of the tar file.
    """
    asked_shapes = _parsed_shapes(shape or [])

    def find() -> Job:
        with context.database.reading() as session:
            key = device_class(session, target, context.now())
            found = jobs.published(session, model, key, exact=exact, tf32=tf32, quantize=quantize)
            device = devices.get_class(session, key)
        if not found:
            detail = f"No compiled model of {model} for {device.title} fits the request: start a job."
            raise Problem(404, "no-artifact", detail)
        return _of_shapes(context, found, asked_shapes)

    return await artifact_answer(context, await run_in_threadpool(find), request, bundle)


async def artifact_answer(context: ServerContext, job: Job, request: Request, bundle: bool) -> Response:
    """Return the artifact that a job published, or its bundle; 304 if the client has it."""
    assert job.artifact_sha is not None, "the job has published"
    beginning, digest, name = b"", bytes.fromhex(job.artifact_sha), job.id
    if bundle:
        made = await context.transfers.run(bundle_of, context, job)
        beginning, digest, name = made.beginning, made.sha256, f"{job.id}-bundle"
    headers = headers_of(f'"{digest.hex()}"') | {"Tunefarm-Job": job.id, "Repr-Digest": repr_digest(digest)}
    headers["Tunefarm-Device-Class"] = job.device_class or ""
    if (latency := latency_s(job)) is not None:
        headers["Tunefarm-Latency-S"] = f"{latency:.9g}"
    if job.artifact_version is not None:
        headers["Tunefarm-Version"] = str(job.artifact_version)
    if is_current(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    size = await run_in_threadpool(_size, context, job.artifact_sha)
    if size is None:
        raise BlobNotFound(f"the artifact of job {job.id} was deleted just now")
    headers["Content-Disposition"] = f'attachment; filename="{name}.tar"'
    headers["Content-Length"] = str(len(beginning) + size)
    chunks = _after(beginning, stream_blob(context.database, context.transfers, job.artifact_sha, size))
    return StreamingResponse(chunks, media_type="application/x-tar", headers=headers)


def latency_s(job: Job) -> float | None:
    """Return the latency of a job's artifact in seconds; None if nothing was timed."""
    return min((statistics.median(secs) for secs in (job.tuned_s, job.untuned_s) if secs), default=None)


def _size(context: ServerContext, sha: str) -> int | None:
    with context.database.reading() as session:
        return blobs.size(session, sha)


async def _after(beginning: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for chunk in chunks:
        yield chunk


def _of_shapes(context: ServerContext, found: Sequence[Job], asked: Shapes | None) -> Job:
    """Return the first of the jobs, newest first, whose artifact has the shapes that are asked for.

    `asked` must have the shape of each dynamic input, and may have shapes of other inputs. Raises Problem.
    """
    newest: dict[tuple[tuple[str, tuple[int, ...]], ...], Job] = {}
    for job in found:
        newest.setdefault(tuple(sorted(job.request.shapes.items())), job)
    if asked is None and len(newest) == 1:
        return found[0]
    for job in newest.values():
        own = job.request.shapes
        if asked is None or not own.items() <= asked.items():
            continue
        if own == asked or asked.items() <= _input_shapes(context, job).items():
            return job
    known = {_shapes_text(job.request.shapes or _input_shapes(context, job)) for job in newest.values()}
    listed = "; ".join(sorted(known))
    if asked is None:
        detail = f"The model was tuned for several shapes, say which by shape=NAME=1,3,224,224: {listed}."
        raise Problem(409, "shapes-needed", detail)
    detail = f"No compiled model of this model and device has {_shapes_text(asked)}. There are: {listed}. "
    raise Problem(404, "no-artifact", detail + "Ask for one of these, or start a job.")


def _input_shapes(context: ServerContext, job: Job) -> Shapes:
    """Return the shapes of all inputs of a job's artifact; nothing if its manifest can't be read."""
    assert job.artifact_sha is not None, "the job has published"
    try:
        # The runtime's parser would load NumPy and a library of TVM's.
        manifest = json.loads(manifest_text(context, job.artifact_sha))
        return {one["name"]: tuple(one["shape"]) for one in manifest["inputs"]}
    except (tarfile.TarError, ValueError, LookupError, TypeError, BlobNotFound):
        return {}


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


def _shapes_text(shapes: Shapes) -> str:
    named = (f"{name}={','.join(map(str, extents))}" for name, extents in sorted(shapes.items()))
    return " ".join(named) or "those of the model itself"
