"""The registries of steps agree: states name steps, steps have functions, functions are Celery tasks."""

from pathlib import Path

from core.job import UNFINISHED, JobState
from scheduler.app import STEP_OF, make_app
from scheduler.steps import celery_tasks
from scheduler.steps.drive import STEPS
from scheduler.upkeep.deliveries import Deliverer
from scheduler.upkeep.sweep import Sweeper
from tests.unit.scheduler.farm import Farm


def test_every_unfinished_state_has_a_step_and_every_step_a_function() -> None:
    assert set(STEP_OF) == UNFINISHED
    assert set(STEPS) == set(STEP_OF.values())


def test_every_step_is_a_task_of_its_own(farm: Farm, tmp_path: Path) -> None:
    app = make_app(str(tmp_path / "broker"))
    celery_tasks.register(app, farm.context, Sweeper(farm.context), Deliverer(farm.context))
    farm.submit()
    app.tasks[f"scheduler.{STEP_OF[JobState.TUNING]}"]("job")  # a job that is queued needs intake first
    assert list(farm.wakes) == [(STEP_OF[JobState.QUEUED], "job")]
    ours = {name for name in app.tasks if name.startswith("scheduler.")}
    assert ours == {"scheduler.wake_jobs", "scheduler.deliver", *(f"scheduler.{step}" for step in STEPS)}
