"""`/v1/releases` and `/v1/signing-key`: names, such as `production`, that point to an artifact of each device
class, and the key that artifacts are signed with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from records import devices
from records.jobs import jobs, releases
from records.jobs.jobs import Job
from records.jobs.releases import NoArtifact, Release
from server.api.artifacts import TAR_ANSWER, Bundled, artifact_answer, latency_s
from server.api.fields import Name, RequestBody
from server.api.targets import NATIVE, device_class
from server.conditional import NOT_MODIFIED
from server.context import ContextDep, ServerContext
from server.problems import Problem, problems

router = APIRouter(prefix="/v1", tags=["releases"])

ReleaseName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Target = Annotated[Name, Query(description="a device class, or native")]


class ReleaseRequestBody(RequestBody):
    """The job whose artifact a name will point to."""

    job: Name


class ReleaseBody(BaseModel):
    """A name and the artifact that it points to on a device class.

    `version` counts the artifacts of the model on the device class; `sha256` is the artifact's digest.
    """

    name: str
    device_class: str
    job: str
    model: str
    model_name: str
    version: int | None
    sha256: str
    latency_s: float | None
    set_at: float

    @classmethod
    def of(cls, release: Release) -> ReleaseBody:
        job = release.job
        assert job.artifact_sha is not None, "only jobs with an artifact are released"
        assert job.device_class is not None, "the artifact was compiled for it"
        return cls(
            name=release.name,
            device_class=job.device_class,
            job=job.id,
            model=job.request.model_sha,
            model_name=job.request.model_name,
            version=job.artifact_version,
            sha256=job.artifact_sha,
            latency_s=latency_s(job),
            set_at=release.set_at,
        )


class ReleasesBody(BaseModel):
    """All releases, by name and device class."""

    items: list[ReleaseBody]


class SigningKeyBody(BaseModel):
    """The public key of the service's artifacts: `ed25519:` and 32 bytes in Base64."""

    key: str


@router.get("/signing-key", responses=problems(404))
def show_signing_key(context: ContextDep) -> SigningKeyBody:
    """Return the public key that verifies the signatures of artifacts."""
    if context.signing_key is None:
        detail = "This service signs no artifacts: set TUNEFARM_SIGNING_KEY of its servers and schedulers."
        raise Problem(404, "no-signing-key", detail)
    return SigningKeyBody(key=context.signing_key.public)


@router.get("/releases")
def show_all(context: ContextDep) -> ReleasesBody:
    """Return every release: the artifact that a name points to on a device class."""
    with context.database.reading() as session:
        found = releases.all_releases(session)
    return ReleasesBody(items=[ReleaseBody.of(release) for release in found])


@router.get("/releases/{name}", responses=problems(404))
def show(name: ReleaseName, context: ContextDep, target: Target = NATIVE) -> ReleaseBody:
    """Return the job and the artifact that a name points to on a device class."""
    with context.database.reading() as session:
        key = device_class(session, target, context.now())
        return ReleaseBody.of(releases.get(session, name, key))


@router.put("/releases/{name}", responses=problems(400, 404, 409))
def point(name: ReleaseName, body: ReleaseRequestBody, request: Request, context: ContextDep) -> ReleaseBody:
    """Let a name point to the artifact of a job, on its device class."""
    with context.database.begin() as session:
        try:
            job_id = jobs.full_id(session, body.job)
            release = releases.point(session, name, job_id, context.now())
            device = devices.get_class(session, str(release.job.device_class))
        except NoArtifact as error:
            raise Problem(409, "no-artifact", f"Nothing was released: {error}.") from error
    request.state.audited = f"{name} on {device.title} is job {job_id}"
    return ReleaseBody.of(release)


@router.delete("/releases/{name}", status_code=204, responses=problems(404))
def drop(name: ReleaseName, request: Request, context: ContextDep, target: Target = NATIVE) -> None:
    """Delete a name on a device class. The artifact stays."""
    with context.database.begin() as session:
        key = device_class(session, target, context.now())
        releases.drop(session, name, key)
        device = devices.get_class(session, key)
    request.state.audited = f"{name} on {device.title}"


@router.get(
    "/releases/{name}/artifact",
    response_class=StreamingResponse,
    responses={200: TAR_ANSWER, **NOT_MODIFIED, **problems(404, 409)},
)
async def artifact(
    name: ReleaseName,
    request: Request,
    context: ContextDep,
    target: Target = NATIVE,
    bundle: Bundled = False,
) -> Response:
    """Return the artifact that a name points to, as `/v1/artifacts/best` does."""
    job = await run_in_threadpool(_job, context, name, target)
    return await artifact_answer(context, job, request, bundle)


def _job(context: ServerContext, name: str, target: str) -> Job:
    with context.database.reading() as session:
        key = device_class(session, target, context.now())
        return releases.get(session, name, key).job
