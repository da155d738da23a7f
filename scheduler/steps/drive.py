"""Map the states of jobs to steps, and run a step under a claim."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError
from core.job import UNFINISHED, JobState
from records.jobs import events, jobs
from records.jobs.jobs import Job, JobNotFound
from records.storage.database import StorageError
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.steps import attempts, claims, inference, intake, publish, rounds
from system import logs


@dataclass(frozen=True)
class Step:
    """The next step of jobs in one of `states`. The step is the Celery task `scheduler.NAME`.

    An inference job runs `inference.run` in its place.
    """

    name: str
    states: frozenset[JobState]
    run: Callable[[Context, Job], None]


STEPS = (
    Step("intake", frozenset({JobState.QUEUED, JobState.IMPORTING}), intake.run),
    Step("round", frozenset({JobState.TUNING}), rounds.run),
    Step("publish", frozenset({JobState.PUBLISHING}), publish.run),
)
PERMANENT = (PermanentError, ModelError, ArtifactError)

log = logging.getLogger(__name__)


def step_of(state: JobState) -> Step | None:
    """Return the step that a job in this state needs next; None for a finished job."""
    return next((step for step in STEPS if state in step.states), None)


def wake_jobs(context: Context) -> None:
    """Wake every unfinished job."""
    try:
        with context.database.reading() as session:
            unfinished = jobs.unfinished(session)
    except StorageError as error:
        log.error("no job was woken: %s", error)
        return
    for job in unfinished:
        if (step := step_of(job.state)) is not None:
            context.wake(step.name, job.id)


def drive(context: Context, name: str, job_id: str) -> None:
    """Run the step of this name if the job needs it next. Otherwise wake the step that the job needs."""
    job = None if name == "round" and _has_enough_trials(context, job_id) else _claim(context, job_id)
    if job is None:
        return
    try:
        step = step_of(job.state)
        if step is not None and step.name == name:
            timed = context.metrics.timed(step.name)
            with logs.about(job=job_id, step=step.name), timed, claims.renewed(context, job_id):
                _run_step(context, step, job)
    finally:
        state = _release(context, job_id)
    # A job in a new state continues at once, without waiting for the next sweep.
    next_step = step_of(state) if state is not None else None
    if next_step is not None and next_step.name != name:
        context.wake(next_step.name, job_id)


def _has_enough_trials(context: Context, job_id: str) -> bool:
    """Return whether the job's round has nothing to do now."""
    try:
        return rounds.has_enough_trials(context, job_id)
    except StorageError as error:
        log.error("job %s has to wait: %s", job_id, error)
        return True


def _claim(context: Context, job_id: str) -> Job | None:
    """Claim the job for this scheduler and return it; None if it is finished or another scheduler has claimed
    it.
    """
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
    """Release the claim and return the job's current state; None if the job was deleted or the database
    fails.
    """
    try:
        with context.database.begin() as session:
            jobs.release_claim(session, job_id, context.scheduler_name)
            return jobs.get(session, job_id).state
    except JobNotFound:
        return None
    except StorageError as error:
        log.error("job %s stays claimed until the claim lapses: %s", job_id, error)
        return None


def _run_step(context: Context, step: Step, job: Job) -> None:
    try:
        with context.database.begin() as session:
            newest = events.latest(session, job.id, 1)
        try:
            take = step.run if job.request.infers is None else inference.run
            take(context, job)
        except PERMANENT as error:
            log.warning("job %s failed: %s", job.id, error)
            context.metrics.step_failures.labels(step.name, "final").inc()
            with context.database.begin() as session:
                jobs.advance(session, job.id, UNFINISHED, JobState.FAILED, context.now(), error=str(error))
        except StorageError:
            raise
        except Exception as error:
            log.exception("job %s will be tried again", job.id)
            context.metrics.step_failures.labels(step.name, "retried").inc()
            [cause, *_] = str(error).strip().splitlines() or ["no message"]
            failure, most = f"{type(error).__name__}: {cause}", context.settings.max_failures
            newest_id, now = newest[0].id if newest else 0, context.now()
            with context.database.begin() as session:
                # Steps that count their attempts themselves give up before this limit.
                count = attempts.count_failure(session, job.id, step.name, newest_id, now, most + 1)
                if count <= most:
                    jobs.set_message(session, job.id, f"trying again after {failure}")
                else:
                    gave_up = f"gave up after {count} attempts: {failure}"
                    jobs.advance(session, job.id, UNFINISHED, JobState.FAILED, now, error=gave_up)
    except StorageError as error:
        log.error("job %s will be tried again: %s", job.id, error)
        context.metrics.step_failures.labels(step.name, "storage").inc()
