"""The registry of steps: every unfinished state has one step, and every step is a Celery task."""

from collections import Counter
from pathlib import Path

from core.job import UNFINISHED, JobState
from scheduler.app import make_app
from scheduler.steps import celery_tasks
from scheduler.steps.drive import STEPS, step_of
from scheduler.steps.long_steps import LONG_STEPS, LongStep
from scheduler.upkeep.outlines import OutlineReader
from scheduler.upkeep.webhook_deliveries import Deliverer
from tests.unit.scheduler.farm import Farm


def test_every_unfinished_state_needs_exactly_one_step() -> None:
    assert Counter(state for step in STEPS for state in step.states) == Counter(UNFINISHED)
    assert all(step_of(state) is None for state in JobState if state.finished)


def test_each_step_is_a_celery_task(farm: Farm, tmp_path: Path) -> None:
    app = make_app(str(tmp_path / "broker"))
    long_steps = {name: LongStep(farm.context, name) for name in LONG_STEPS}
    celery_tasks.register(app, farm.context, long_steps, Deliverer(farm.context), OutlineReader(farm.context))
    farm.submit()
    app.tasks["scheduler.round"]("job")  # a job that is queued needs intake first
    assert list(farm.wakes) == [("intake", "job")]
    ours = {name for name in app.tasks if name.startswith("scheduler.")}
    others = {f"scheduler.{name}" for name in ("wake_jobs", "deliver", "outline")}
    assert ours == {*others, *(f"scheduler.{step.name}" for step in STEPS)}
