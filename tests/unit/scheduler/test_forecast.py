"""Forecast the next minutes from the last ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from core.job import Budget
from records.jobs.tasks import Task
from records.jobs.trials import MeasuredTrial, Pace
from scheduler.planning.forecast import Point, curve, gain_of_next_minute, seconds_left

CONV = Task(1, "job", "conv", "conv", 2, 1e6, True, "", 1, 2e-3, ())
POOL = Task(2, "job", "pool", "pool", 1, 1e6, True, "", 1, 1e-3, ())
WINOGRAD = replace(CONV, id=3, workload_hash="winograd", variant="winograd", variant_of="conv", best_s=1e-3)
CUMSUM = replace(POOL, id=4, workload_hash="cumsum", covered=False, best_s=None)


def trial(task: Task, at: float, latency_s: float | None) -> MeasuredTrial:
    return MeasuredTrial(task.id, at, latency_s)


def test_the_curve_begins_when_everything_is_known_and_falls() -> None:
    measured = [
        trial(CONV, 1.0, 5e-3),
        trial(POOL, 2.0, 2e-3),
        trial(POOL, 3.0, None),
        trial(POOL, 4.0, 3e-3),
        trial(WINOGRAD, 5.0, 1e-3),
        trial(POOL, 6.0, 1e-3),
    ]
    found = curve([(1.0, (CONV, POOL, WINOGRAD, CUMSUM))], measured)
    assert found == [Point(2.0, 12e-3), Point(5.0, 4e-3), Point(6.0, 3e-3)]


def test_measurements_of_other_jobs_count_from_the_start() -> None:
    assert curve([(1.0, (CONV, POOL))], [trial(POOL, 2.0, 1e-3)]) == [Point(2.0, 5e-3)]


def test_networks_share_common_tasks() -> None:
    other = replace(CONV, id=9, job_id="other", weight=1)
    found = curve([(1.0, (CONV,)), (3.0, (other,))], [trial(CONV, 1.0, 2e-3), trial(CONV, 2.0, 1e-3)])
    assert [point.at for point in found] == [1.0, 2.0]
    assert [point.latency_s for point in found] == pytest.approx([10e-3, 5e-3])


# Latency falls by a second whenever the search's duration grows e-fold.
LOGARITHMIC = [Point(100.0 + at, 20.0 - math.log(at)) for at in range(1, 201)]


def test_the_next_minutes_gain_follows_the_logarithm() -> None:
    latency_s = LOGARITHMIC[-1].latency_s
    expected = math.log(260 / 200) / latency_s
    assert gain_of_next_minute(LOGARITHMIC, 100.0, 300.0) == pytest.approx(expected)


def test_gain_is_unknown_in_the_first_minute_and_without_a_first_half() -> None:
    assert gain_of_next_minute(LOGARITHMIC[:59], 100.0, 159.0) is None
    assert gain_of_next_minute(LOGARITHMIC[150:], 100.0, 300.0) is None
    assert gain_of_next_minute([], 100.0, 300.0) is None


def left(budget: Budget, trials_left: int = 100, count: int = 200) -> float | None:
    finished_at = [100.0 + number for number in range(1, count + 1)]
    points = LOGARITHMIC[:count]
    now = 100.0 + count
    return seconds_left(budget, trials_left, Pace.of(finished_at), points, began_at=100.0, now=now)


def test_the_time_left_uses_the_recent_trial_rate() -> None:
    assert left(Budget(300)) == pytest.approx(100.0)
    assert left(Budget(300), count=7) is None
    assert left(Budget(300), trials_left=0) == 0.0


def test_trials_that_are_reported_together_do_not_shorten_the_time() -> None:
    """Four trials every five seconds."""
    finished_at = [5.0 * (number // 4) for number in range(20)]
    found = seconds_left(Budget(40), 20, Pace.of(finished_at), [], began_at=0.0, now=20.0)
    assert found == pytest.approx(25.0)
    assert seconds_left(Budget(40), 20, Pace.of([1.0] * 8), [], began_at=0.0, now=1.0) is None


def test_the_first_goal_counts() -> None:
    assert left(Budget(300, minutes=4.0)) == pytest.approx(40.0)
    assert left(Budget(300, minutes=1.0)) == 0.0
    assert left(Budget(300, minutes=60.0)) == pytest.approx(100.0)


def test_goals_of_latency_and_gain_follow_the_logarithm() -> None:
    now_s = LOGARITHMIC[-1].latency_s
    sooner = now_s - math.log(250 / 200)
    assert left(Budget(10_000, latency_s=sooner), 9_800) == pytest.approx(50.0)
    gain = math.log1p(60 / 240) / now_s
    assert left(Budget(10_000, min_gain=gain), 9_800) == pytest.approx(40.0)
    # Never, by the forecast: the trials end it.
    assert left(Budget(300, latency_s=1e-9)) == pytest.approx(100.0)


def test_a_search_that_gains_nothing_more_has_no_time_for_a_latency() -> None:
    flat = [Point(101.0, 5.0)]
    found = seconds_left(Budget(9, latency_s=1.0), 5, None, flat, began_at=100.0, now=300.0)
    assert found is None
