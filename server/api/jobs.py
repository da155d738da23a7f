"""`/v1/jobs`: asking for a tuned model, watching it, cancelling it, fetching it, deleting it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from core.job import Budget, Build, JobState
from records.jobs import deletion, jobs, models, tasks
from records.jobs.deletion import JobInUse
from records.jobs.jobs import JobNotFound, JobRequest
from records.jobs.models import ModelNotFound
from records.storage import blobs
from server.api.problems import Problem, problems
from server.api.schemas import JobBody, JobRequestBody, JobsBody, Name, TaskBody, TasksBody
from server.api.targets import NATIVE, device_class
from server.context import ContextDep

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_SPOOL_BYTES = 1 << 20
_TAR_ANSWER = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("", status_code=202, responses=problems(400, 409))
def create(
    body: JobRequestBody,
    request: Request,
    response: Response,
    context: ContextDep,
    idempotency_key: Annotated[Name | None, Header()] = None,
) -> JobBody:
    """Starts a job. The same Idempotency-Key with the same request gives the job it made before."""
    with context.database.begin() as session:
        wanted = _job_request(session, body)
        job = jobs.create(session, context.new_id(), wanted, idempotency_key, context.now())
    if job.state is JobState.QUEUED:
        context.wake("intake", job.id)
    request.state.audited = job.id
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return JobBody.of(job)


@router.get("")
def list_jobs(
    context: ContextDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[Name | None, Query(description="the `next` of the page before")] = None,
) -> JobsBody:
    """Newest first."""
    with context.database.begin() as session:
        try:
            found = jobs.list_jobs(session, limit + 1, before)
        except JobNotFound as error:
            raise Problem(
                422, "unknown-cursor", f"No job has the id {before!r}: start without it."
            ) from error
    page = found[:limit]
    return JobsBody(items=[JobBody.of(job) for job in page], next=page[-1].id if found[limit:] else None)


@router.get("/{job_id}", responses=problems(404))
def show(job_id: str, context: ContextDep) -> JobBody:
    with context.database.begin() as session:
        return JobBody.of(jobs.get(session, job_id))


@router.post("/{job_id}:cancel", responses=problems(404, 409))
def cancel(job_id: str, context: ContextDep) -> JobBody:
    """Cancels an unfinished job; cancelling it again changes nothing."""
    with context.database.begin() as session:
        job = jobs.cancel(session, job_id, context.now())
    if job.state is not JobState.CANCELLED:
        raise Problem(
            409, "job-finished", f"Job {job.id} is {job.state} already: there is nothing to cancel."
        )
    return JobBody.of(job)


@router.delete("/{job_id}", status_code=204, responses=problems(404, 409))
def delete(job_id: str, context: ContextDep) -> None:
    """Deletes a finished job with its artifact and its events. What was measured for it stays."""
    with context.database.begin() as session:
        try:
            deletion.delete_job(session, job_id, context.now())
        except JobInUse as error:
            raise Problem(409, "job-in-use", str(error)) from error


@router.get("/{job_id}/tasks", responses=problems(404))
def show_tasks(job_id: str, context: ContextDep) -> TasksBody:
    """The job's subgraphs, with the best latency known of each."""
    with context.database.begin() as session:
        jobs.get(session, job_id)
        return TasksBody(items=[TaskBody.of(task) for task in tasks.for_job(session, job_id)])


@router.get(
    "/{job_id}/artifact",
    response_class=StreamingResponse,
    responses={200: _TAR_ANSWER, **problems(404, 409)},
)
def artifact(job_id: str, context: ContextDep) -> StreamingResponse:
    """The tuned model as a tar file: `model.so` and `manifest.json`."""
    with context.database.begin() as session:
        job = jobs.get(session, job_id)
        if job.state is not JobState.DONE or job.artifact_sha is None:
            raise Problem(409, "no-artifact", _no_artifact(job), state=job.state.value)
        file = spool(session, job.artifact_sha)
    headers = {
        "Content-Disposition": f'attachment; filename="{job.id}.tar"',
        "Content-Length": str(file.seek(0, 2)),
        "ETag": f'"{job.artifact_sha}"',
    }
    return StreamingResponse(pieces(file), media_type="application/x-tar", headers=headers)


def spool(session: Session, sha: str) -> IO[bytes]:
    """A temporary copy of a blob, so that no transaction lasts as long as a slow client reads."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - `pieces` closes it
    try:
        for chunk in blobs.chunks(session, sha):
            file.write(chunk)
    except BaseException:
        file.close()
        raise
    return file


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The file from its start, closed at its end."""
    with file:
        file.seek(0)
        while chunk := file.read(_SPOOL_BYTES):
            yield chunk


def _job_request(session: Session, body: JobRequestBody) -> JobRequest:
    try:
        model = models.get(session, body.model)
    except ModelNotFound as error:
        raise Problem(
            422, "unknown-model", f"No model is stored as {body.model}: upload it first."
        ) from error
    if body.target != NATIVE:
        device_class(session, body.target)
    return JobRequest(
        model_sha=model.sha,
        model_name=model.name,
        shapes={name: tuple(shape) for name, shape in body.shapes.items()},
        target=body.target,
        budget=Budget(body.trials, body.minutes),
        seed=body.seed,
        priority=body.priority,
        weight=body.weight,
        build=Build(body.build),
    )


def _no_artifact(job: jobs.Job) -> str:
    if job.state.finished:
        return f"Job {job.id} is {job.state} and made no tuned model: {job.error or 'start a new job'}."
    return f"Job {job.id} is {job.state}: its tuned model can be fetched when it is done."
