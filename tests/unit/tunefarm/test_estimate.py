"""Time left, and the network's latency."""

from __future__ import annotations

import pytest

from core.job import JobState
from tests.unit.tunefarm.samples import job, task
from tunefarm.cli.estimate import Pace, by_time, network_s, seconds_left, share


def test_pace_looks_at_the_last_minute_only() -> None:
    pace = Pace()
    pace.note(0.0, 0)
    assert pace.trials_per_s() is None
    pace.note(10.0, 20)
    assert pace.trials_per_s() == 2.0
    pace.note(70.0, 50)
    assert pace.trials_per_s() == 0.5


def test_the_budget_that_ends_first_says_how_long_is_left() -> None:
    running = job(trials=100, trials_done=40, minutes=1.0, started_at=1000.0)
    assert seconds_left(running, 2.0, now=1010.0) == 30.0
    assert seconds_left(running, 2.0, now=1050.0) == 10.0
    assert seconds_left(running, None, now=1050.0) == 10.0
    assert seconds_left(running, None, now=2000.0) == 0.0
    assert seconds_left(job(minutes=None), None, now=0.0) is None
    assert seconds_left(job(state=JobState.QUEUED), 2.0, now=0.0) is None


def test_the_network_is_the_weighted_sum_of_its_covered_tasks() -> None:
    tasks = [task("a", weight=2, best_s=0.003), task("b", best_s=0.004), task("f", covered=False)]
    assert network_s(tasks) == pytest.approx(0.010)
    assert share(tasks[0], tasks) == pytest.approx(0.6)
    assert share(tasks[2], tasks) is None
    assert network_s([*tasks, task("c")]) is None
    assert network_s([]) is None


def test_the_costliest_task_comes_first_and_uncovered_ones_last() -> None:
    tasks = [task("f", covered=False), task("slow", best_s=2.0), task("fast", best_s=1.0), task("new")]
    assert [one.name for one in by_time(tasks)] == ["slow", "fast", "new", "f"]
