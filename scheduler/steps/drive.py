"""Taking a job's next step: one holder at a time; what goes wrong becomes a message, never an exception."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError
from core.job import JobState
from records.fleet import leases
from records.jobs import jobs
from records.jobs.jobs import Job, JobNotFound
from records.storage.database import StorageError
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.steps import intake, publish, rounds

STEP_OF: Mapping[JobState, str] = {
    JobState.QUEUED: "intake",
    JobState.IMPORTING: "intake",
    JobState.TUNING: "plan",
    JobState.PUBLISHING: "publish",
}
STEPS: Mapping[str, Callable[[Context, Job], None]] = {
    "intake": intake.run,
    "plan": rounds.run,
    "publish": publish.run,
}
PERMANENT = (PermanentError, ModelError, ArtifactError)

log = logging.getLogger(__name__)


def drive(context: Context, step: str, job_id: str) -> None:
    """Take the step if it is the job's next one; a wake-up for another one is passed on."""
    job = _claim(context, job_id)
    if job is None:
        return
    try:
        if STEP_OF.get(job.state) == step:
            _take(context, STEPS[step], job)
    finally:
        state = _release(context, job_id)
    # A job that has come to another state is looked at again at once, not only by the next sweep.
    due = STEP_OF.get(state) if state is not None else None
    if due is not None and due != step:
        context.wake(due, job_id)


def sweep(context: Context) -> None:
    """Repair what a lost message or device left behind: lapsed leases, jobs that nobody looks at. Tidy up."""
    try:
        with context.database.begin() as session:
            leases.expire(session, context.now())
            unfinished = jobs.unfinished(session)
        context.relief.look(context.database, context.now())
        context.tidier.tidy(context.database, context.now())
    except StorageError as error:
        log.error("no sweep: %s", error)
        return
    for job in unfinished:
        context.wake(STEP_OF[job.state], job.id)


def _claim(context: Context, job_id: str) -> Job | None:
    """The job for this scheduler alone, or None when there is nothing to do for it."""
    try:
        with context.database.begin() as session:
            job = jobs.get(session, job_id)
            if job.state.finished:
                return None
            claimed = jobs.claim(session, job_id, context.holder, context.now(), context.settings.claim_ttl_s)
            return job if claimed else None
    except JobNotFound:
        log.warning("asked to step job %s, which does not exist", job_id)
    except StorageError as error:
        log.error("job %s has to wait: %s", job_id, error)
    return None


def _release(context: Context, job_id: str) -> JobState | None:
    """The state the job has come to, None when there is none or the storage is out of order."""
    try:
        with context.database.begin() as session:
            jobs.release(session, job_id, context.holder)
            return jobs.get(session, job_id).state
    except JobNotFound:
        return None  # it was finished, and deleted
    except StorageError as error:
        log.error("job %s stays claimed until the claim lapses: %s", job_id, error)
        return None


def _take(context: Context, action: Callable[[Context, Job], None], job: Job) -> None:
    try:
        action(context, job)
    except PERMANENT as error:
        _fail(context, job, str(error))
    except StorageError as error:
        log.error("job %s will be tried again: %s", job.id, error)
    except Exception as error:
        log.exception("job %s will be tried again", job.id)
        _note(context, job, f"trying again after {type(error).__name__}: {_first_line(error)}")


def _fail(context: Context, job: Job, cause: str) -> None:
    log.warning("job %s failed: %s", job.id, cause)
    try:
        with context.database.begin() as session:
            unfinished = {state for state in JobState if not state.finished}
            jobs.advance(session, job.id, unfinished, JobState.FAILED, context.now(), error=cause)
    except StorageError as error:
        log.error("job %s could not be marked as failed: %s", job.id, error)


def _note(context: Context, job: Job, message: str) -> None:
    try:
        with context.database.begin() as session:
            jobs.set_message(session, job.id, message)
    except StorageError as error:
        log.error("job %s: %s", job.id, error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
