"""A round is due while the devices still have work for longer than a round takes."""

from __future__ import annotations

import pytest

from records.fleet.workers import Capacity
from records.jobs.jobs import OpenTrials
from scheduler.planning.lookahead import MAX_AHEAD_S, SAFETY, Lookahead

FLEET = Capacity(devices=100, trials_per_s=200.0)


@pytest.mark.parametrize(
    ("pending", "leased", "is_due"),
    [
        (0, 424, True),  # every device waits after its trials, of which each has four
        (799, 0, True),
        (800, 0, False),
        (798, 100, True),  # these keep each device busy for one trial
        (798, 200, False),
    ],
)
def test_trials_are_ready_for_twice_the_time_of_a_round(pending: int, leased: int, is_due: bool) -> None:
    assert SAFETY == 2
    lookahead = Lookahead.during(2.0, FLEET, max_open=32)
    assert lookahead.is_due(OpenTrials(pending, leased)) is is_due


def test_a_slow_round_does_not_plan_far_ahead() -> None:
    lookahead = Lookahead.during(1000.0, FLEET, max_open=32)
    assert lookahead.min_ready == MAX_AHEAD_S * FLEET.trials_per_s


@pytest.mark.parametrize("capacity", [Capacity(1, 0.1), Capacity(0, 0.0)])
def test_few_open_trials_are_always_too_few(capacity: Capacity) -> None:
    lookahead = Lookahead.during(0.5, capacity, max_open=32)
    assert lookahead.is_due(OpenTrials(pending=32, leased=0))
    assert lookahead.is_due(OpenTrials(pending=0, leased=32))
    assert not lookahead.is_due(OpenTrials(pending=33, leased=0))
