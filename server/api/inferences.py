"""Inference jobs, which run an artifact on a device with a user's inputs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from core.compatibility import nearest
from core.job import Budget
from records import devices
from records.jobs import inferences, jobs
from records.jobs.jobs import JobRequest
from records.jobs.models import DatasetNotFound
from server.api.downloads import file_answer
from server.api.fields import Name, RequestBody, Sha256
from server.api.ids import JobId
from server.api.jobs import JobBody, own_key, published_job
from server.api.targets import device_class
from server.context import ContextDep
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

NPZ_ANSWER = {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}


class InferenceRequestBody(RequestBody):
    """`inputs` is the sha256 of an uploaded dataset, with an array of the type and shape of each input.

    `target` is a device class that can run the artifact's code, by default the artifact's own class.
    """

    inputs: Sha256
    target: Name | None = None


class OutputDifferenceBody(BaseModel):
    """The difference of an output from the reference. `differing` of its `elements` are not equal.

    `largest` is the largest absolute difference; null if an element is NaN or infinite in only one of the
    two. `db` is the signal-to-noise ratio in decibels; null if all elements are equal.
    """

    name: str
    elements: int
    differing: int
    largest: float | None
    db: float | None


class ComparisonBody(BaseModel):
    """The differences of all outputs from ONNX Runtime's outputs for the original model.

    If the outputs were not compared, `note` says why. `text` is a summary.
    """

    outputs: list[OutputDifferenceBody]
    note: str
    text: str


class InferenceBody(BaseModel):
    """The result of an inference job: it ran the artifact of the job `infers` with the dataset `inputs`.

    `comparison` is null until the job is done.
    """

    infers: str
    inputs: str
    has_outputs: bool
    comparison: ComparisonBody | None


@router.post("/{job_id}/inferences", status_code=202, responses=problems(400, 404, 409))
def create(
    job_id: JobId,
    body: InferenceRequestBody,
    request: Request,
    response: Response,
    context: ContextDep,
    idempotency_key: Annotated[Name | None, Header()] = None,
) -> JobBody:
    """Start a job that runs another job's artifact once on a device, with a dataset.

    The outputs are stored as an .npz file, and compared with ONNX Runtime's outputs for the original model.
    A repeated Idempotency-Key returns the job that it started before.
    """
    idempotency_key = own_key(request, idempotency_key)
    source, now = published_job(context, job_id), context.now()
    assert source.device_class is not None, "it has published"
    with context.database.begin() as session:
        key = source.device_class if body.target is None else device_class(session, body.target, now)
        own, asked = (devices.get_class(session, one) for one in (source.device_class, key))
        if key != own.key and not nearest(asked, [own]):
            detail = (
                f"The artifact of job {job_id} is for {own.name}, and can't run on {asked.name}: "
                "tune the model for that device class."
            )
            raise Problem(409, "other-device", detail)
        wanted = JobRequest(
            model_sha=source.request.model_sha,
            model_name=source.request.model_name,
            shapes=source.request.shapes,
            target=key,
            budget=Budget(0),
            infers=source.id,
        )
        submission = jobs.Submission(now, idempotency_key, submitted_by=request.state.caller.who)
        job = jobs.create(session, context.new_id(), wanted, submission)
        try:
            inferences.add(session, job.id, body.inputs)
        except DatasetNotFound as error:
            detail = f"No dataset is stored as {body.inputs}: upload it first."
            raise Problem(422, "unknown-dataset", detail) from error
    context.wake("intake", job.id)
    request.state.audited = job.id
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return JobBody.of(job, now)


@router.get("/{job_id}/inference", responses=problems(404))
def show(job_id: JobId, context: ContextDep) -> InferenceBody:
    """Return the result of an inference job."""
    with context.database.reading() as session:
        job, found = jobs.get(session, job_id), inferences.get(session, job_id)
    comparison = None
    if found.comparison is not None:
        listed = [OutputDifferenceBody(**vars(one)) for one in found.comparison.outputs]
        comparison = ComparisonBody(outputs=listed, note=found.comparison.note, text=found.comparison.text)
    return InferenceBody(
        infers=job.request.infers or "",
        inputs=found.inputs,
        has_outputs=found.outputs_sha is not None,
        comparison=comparison,
    )


@router.get(
    "/{job_id}/outputs",
    response_class=StreamingResponse,
    responses={200: NPZ_ANSWER, **problems(404, 409)},
)
async def outputs(job_id: JobId, context: ContextDep) -> Response:
    """Return the outputs of an inference job: an .npz file with an array for each output."""

    def find() -> str | None:
        with context.database.reading() as session:
            return inferences.get(session, job_id).outputs_sha

    sha = await run_in_threadpool(find)
    if sha is None:
        detail = f"Job {job_id} has no outputs yet. If the job is still running, try again when it is done."
        raise Problem(409, "no-outputs", detail)
    return await file_answer(context, sha, f"{job_id}.npz", "application/zip")
