"""The steps of an inference job, which runs an artifact on a device with a user's inputs."""

from __future__ import annotations

import tempfile

from sqlalchemy.orm import Session

from compiler.packaging.artifact import open_artifact, write_with_inputs
from core.job import JobState
from records import devices
from records.fleet import module_runs
from records.jobs import inferences, jobs
from records.jobs.jobs import Job, JobNotFound
from records.storage import blobs
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.steps import attempts, waiting_messages
from scheduler.steps.selection import failure_of
from system import tracing

GONE = "the artifact or its inputs are no longer stored: tune the model and upload the inputs again"
NO_OUTPUTS = "the device sent no outputs: update its worker to the service's version"


def run(context: Context, job: Job) -> None:
    """Request the run of a new job, or compare the outputs if a device has run it.

    Raises PermanentError, ModelError, ArtifactError.
    """
    if job.state is JobState.PUBLISHING:
        _compare(context, job)
    else:
        _request_run(context, job)


def _request_run(context: Context, job: Job) -> None:
    now = context.now()
    with context.database.begin() as session:
        source = _source(session, job)
        device = devices.get_class(session, job.request.target)
        found = inferences.get(session, job.id)
        jobs.set_device_class(session, job.id, device.key)
        jobs.advance(session, job.id, {JobState.QUEUED}, JobState.IMPORTING, now)
        if not attempts.begin(session, job, "checking the inputs", now, context.settings.max_failures):
            return
    assert source.artifact_sha is not None, "the source job was done when this job was created"
    compiler = context.model_compiler
    with (
        tracing.span("pack inputs", job.trace_parent, job=job.id),
        compiler.stored(source.artifact_sha, GONE) as artifact,
        compiler.stored(found.inputs, GONE) as inputs,
        tempfile.TemporaryFile() as packed,
    ):
        _, manifest = open_artifact(artifact)
        context.children.check_inputs(inputs, manifest.inputs)
        write_with_inputs(packed, artifact, inputs)
        sha, size = blobs.stage(context.database, packed)
        with context.database.begin() as session:
            message, now = "running on the device", context.now()
            before = {JobState.QUEUED, JobState.IMPORTING}
            if jobs.advance(session, job.id, before, JobState.PUBLISHING, now, message=message):
                blobs.put_file(session, packed, sha, size)
                module_runs.add(session, job.id, "inference", sha, now)


def _compare(context: Context, job: Job) -> None:
    with context.database.begin() as session:
        [done] = module_runs.of_job(session, job.id)
        if done.state != "done":
            waiting_messages.note_missing_device(session, job, context.now())
            return
        found = inferences.get(session, job.id)
        now = context.now()
        if done.failed:
            raise PermanentError(f"the artifact failed on the device: {failure_of(done)}")
        if found.outputs_sha is None:
            raise PermanentError(NO_OUTPUTS)
        if not attempts.begin(session, job, "comparing the outputs", now, context.settings.max_failures):
            return
    compiler = context.model_compiler
    with (
        tracing.span("compare outputs", job.trace_parent, job=job.id),
        compiler.stored(done.artifact_sha, GONE) as packed,
        compiler.stored(job.request.model_sha, GONE) as model,
        compiler.stored(found.inputs, GONE) as inputs,
        compiler.stored(found.outputs_sha, GONE) as outputs,
    ):
        _, manifest = open_artifact(packed)
        comparison = context.children.compare_outputs(
            model, job.request.shapes, inputs, manifest.inputs, outputs, manifest.outputs
        )
    with context.database.begin() as session:
        message = f"worker {module_runs.worker_of(session, done)} ran it; {comparison.text}"
        before = {JobState.PUBLISHING}
        if jobs.advance(session, job.id, before, JobState.DONE, context.now(), message=message):
            inferences.set_comparison(session, job.id, comparison)


def _source(session: Session, job: Job) -> Job:
    """Return the job whose artifact to run. Raises PermanentError if that job was deleted."""
    assert job.request.infers is not None, "it is an inference job"
    try:
        return jobs.get(session, job.request.infers)
    except JobNotFound as error:
        raise PermanentError(GONE) from error
