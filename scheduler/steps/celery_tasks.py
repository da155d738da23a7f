"""The Celery tasks, called steps here: each looks at one job and leaves the thinking to its module."""

from __future__ import annotations

from celery import Celery

from scheduler.context import Context
from scheduler.steps.drive import drive, sweep


def register(app: Celery, context: Context) -> None:
    """Make the steps known to the application."""

    @app.task(name="scheduler.intake", shared=False)
    def intake_step(job_id: str) -> None:
        drive(context, "intake", job_id)

    @app.task(name="scheduler.plan", shared=False)
    def plan_step(job_id: str) -> None:
        drive(context, "plan", job_id)

    @app.task(name="scheduler.publish", shared=False)
    def publish_step(job_id: str) -> None:
        drive(context, "publish", job_id)

    @app.task(name="scheduler.sweep", shared=False)
    def sweep_step() -> None:
        sweep(context)
