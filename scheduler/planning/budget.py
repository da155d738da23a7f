"""How many trials a job may still issue."""

from __future__ import annotations

from sqlalchemy.orm import Session

from records.jobs import tasks, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task


def left(session: Session, job: Job) -> int:
    """What the job's own budget of trials still allows."""
    counts = trials.counts(session, job.id)
    return max(job.request.budget.trials - counts.pending - counts.leased - counts.done, 0)


def unknown(session: Session, job_id: str) -> list[Task]:
    """The covered tasks for which nothing is known to run and nothing was tried yet.

    Each gets one trial, the best guess, whatever the budget: without it, it would keep its fallback schedule,
    and a guess that no device has verified is never compiled in.
    """
    issued = trials.issued_tasks(session, job_id)
    listed = tasks.for_job(session, job_id)
    return [task for task in listed if task.covered and task.best_s is None and task.id not in issued]


def room(session: Session, job: Job) -> int:
    """How many trials may be issued now."""
    return max(left(session, job), len(unknown(session, job.id)))
