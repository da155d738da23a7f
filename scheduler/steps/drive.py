"""Takes the next step of a job, in one scheduler at a time, and turns its errors into the job's message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError
from core.job import UNFINISHED, JobState
from records.jobs import events, jobs
from records.jobs.jobs import Job, JobNotFound
from records.storage.database import StorageError
from scheduler.app import STEP_OF
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.steps import attempts, claims, intake, publish, rounds
from system import logs

Step = Callable[[Context, Job], None]
STEPS: Mapping[str, Step] = {"intake": intake.run, "round": rounds.run, "publish": publish.run}
PERMANENT = (PermanentError, ModelError, ArtifactError)

log = logging.getLogger(__name__)


def drive(context: Context, step: str, job_id: str) -> None:
    """Take the step if the job needs it next; otherwise wake the step that it needs."""
    job = _claim(context, job_id)
    if job is None:
        return
    try:
        if STEP_OF.get(job.state) == step:
            timed = context.metrics.timed(step)
            with logs.about(job=job_id, step=step), timed, claims.renewed(context, job_id):
                _take(context, step, job)
    finally:
        state = _release(context, job_id)
    # A job that has come to another state goes on at once, without waiting for the next sweep.
    next_step = STEP_OF.get(state) if state is not None else None
    if next_step is not None and next_step != step:
        context.wake(next_step, job_id)


def _claim(context: Context, job_id: str) -> Job | None:
    """Return the job, claimed for this scheduler; None when it is finished, or claimed by another one."""
    ttl_s = context.settings.claim_ttl_s
    try:
        with context.database.begin() as session:
            job = jobs.get(session, job_id)
            if job.state.finished:
                return None
            claimed = jobs.claim_job(session, job_id, context.scheduler_name, context.now(), ttl_s)
            return job if claimed else None
    except JobNotFound:
        log.warning("asked to step job %s, which does not exist", job_id)
    except StorageError as error:
        log.error("job %s has to wait: %s", job_id, error)
    return None


def _release(context: Context, job_id: str) -> JobState | None:
    """Return the state that the job has come to; None when it was deleted or the database fails."""
    try:
        with context.database.begin() as session:
            jobs.release_claim(session, job_id, context.scheduler_name)
            return jobs.get(session, job_id).state
    except JobNotFound:
        return None
    except StorageError as error:
        log.error("job %s stays claimed until the claim lapses: %s", job_id, error)
        return None


def _take(context: Context, step: str, job: Job) -> None:
    try:
        with context.database.begin() as session:
            newest = events.latest(session, job.id, 1)
        try:
            STEPS[step](context, job)
        except PERMANENT as error:
            log.warning("job %s failed: %s", job.id, error)
            context.metrics.step_failures.labels(step, "final").inc()
            with context.database.begin() as session:
                jobs.advance(session, job.id, UNFINISHED, JobState.FAILED, context.now(), error=str(error))
        except StorageError:
            raise
        except Exception as error:
            log.exception("job %s will be tried again", job.id)
            context.metrics.step_failures.labels(step, "retried").inc()
            [cause, *_] = str(error).strip().splitlines() or ["no message"]
            failure, most = f"{type(error).__name__}: {cause}", context.settings.max_failures
            newest_id, now = newest[0].id if newest else 0, context.now()
            with context.database.begin() as session:
                # A step that counts its attempts itself has given up before there are more.
                count = attempts.count_failure(session, job.id, step, newest_id, now, most + 1)
                if count <= most:
                    jobs.set_message(session, job.id, f"trying again after {failure}")
                else:
                    gave_up = f"gave up after {count} attempts: {failure}"
                    jobs.advance(session, job.id, UNFINISHED, JobState.FAILED, now, error=gave_up)
    except StorageError as error:
        log.error("job %s will be tried again: %s", job.id, error)
        context.metrics.step_failures.labels(step, "storage").inc()
