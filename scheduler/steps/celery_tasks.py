"""The Celery tasks: one for each step of a job, and one that wakes all jobs.

They are closures, not `shared_task`s of a module, because all of them work with the context of their process.
"""

from __future__ import annotations

from celery import Celery

from scheduler.context import Context
from scheduler.steps.drive import drive
from scheduler.upkeep.sweep import Sweeper


def register(app: Celery, context: Context, sweeper: Sweeper) -> None:
    """Register the tasks with the application. Other processes send them by name."""

    @app.task(name="scheduler.intake", shared=False)
    def intake(job_id: str) -> None:
        drive(context, "intake", job_id)

    @app.task(name="scheduler.plan", shared=False)
    def plan(job_id: str) -> None:
        drive(context, "plan", job_id)

    @app.task(name="scheduler.publish", shared=False)
    def publish(job_id: str) -> None:
        drive(context, "publish", job_id)

    @app.task(name="scheduler.wake_jobs", shared=False)
    def wake_jobs() -> None:
        sweeper.wake_jobs()
