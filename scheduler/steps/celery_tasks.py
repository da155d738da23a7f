"""The Celery tasks: one for each step of a job, and one for the sweep.

They are closures, not `shared_task`s of a module, because all of them work with the context of their process.
"""

from __future__ import annotations

from celery import Celery

from scheduler.context import Context
from scheduler.steps.drive import drive
from scheduler.upkeep.sweep import Sweeper


def register(app: Celery, context: Context) -> None:
    """Register the tasks with the application. Other processes send them by name."""
    sweeper = Sweeper(context)

    @app.task(name="scheduler.intake", shared=False)
    def intake(job_id: str) -> None:
        drive(context, "intake", job_id)

    @app.task(name="scheduler.plan", shared=False)
    def plan(job_id: str) -> None:
        drive(context, "plan", job_id)

    @app.task(name="scheduler.publish", shared=False)
    def publish(job_id: str) -> None:
        drive(context, "publish", job_id)

    @app.task(name="scheduler.sweep", shared=False)
    def sweep() -> None:
        sweeper.sweep()
