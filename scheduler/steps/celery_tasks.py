"""The Celery tasks: one for each step of a job, for webhook messages, for outlines of models, and one that
wakes all jobs. They are closures, not `shared_task`s, because they use the context of their process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from celery import Celery

from scheduler.context import Context
from scheduler.steps import drive
from scheduler.steps.long_steps import LongStep
from scheduler.upkeep.outlines import OutlineReader
from scheduler.upkeep.webhook_deliveries import Deliverer


def register(
    app: Celery,
    context: Context,
    long_steps: Mapping[str, LongStep],
    deliverer: Deliverer,
    outline_reader: OutlineReader,
) -> None:
    """Register the tasks with the application. Other processes send them by name. Steps are run at once,
    except the `long_steps`, given by name.
    """

    def register_step(name: str, run: Callable[[str], None]) -> None:
        @app.task(name=f"scheduler.{name}", shared=False)
        def run_step(job_id: str) -> None:
            run(job_id)

    for step in drive.STEPS:
        own = long_steps.get(step.name)
        register_step(step.name, partial(drive.drive, context, step.name) if own is None else own.start)

    @app.task(name="scheduler.deliver", shared=False)
    def deliver(delivery_id: str) -> None:
        deliverer.start(int(delivery_id))

    @app.task(name="scheduler.outline", shared=False)
    def outline(model_sha: str) -> None:
        outline_reader.start(model_sha)

    @app.task(name="scheduler.wake_jobs", shared=False)
    def wake_jobs() -> None:
        drive.wake_jobs(context)
