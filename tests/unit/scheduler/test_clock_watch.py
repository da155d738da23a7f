"""A clock that is set makes leases lapse, and no device is to blame."""

from __future__ import annotations

import pytest

from core.measurement import Outcome
from scheduler.upkeep.clock_watch import JUMP_S, PATIENCE_S, ClockWatch
from tests.unit.scheduler.farm import Farm

DAY_S = 86400.0


class TestWatch:
    @pytest.mark.parametrize("jump_s", [JUMP_S + 1, -JUMP_S - 1, DAY_S, -DAY_S])
    def test_a_jump_is_noticed_for_a_while(self, jump_s: float) -> None:
        time_s = 5.0
        watch = ClockWatch(lambda: time_s)
        assert not watch.has_jumped(1000.0)
        time_s += 2.0
        assert watch.has_jumped(1002.0 + jump_s)
        time_s += PATIENCE_S - 1.0
        assert watch.has_jumped(1001.0 + PATIENCE_S + jump_s)
        time_s += 1.0
        assert not watch.has_jumped(1002.0 + PATIENCE_S + jump_s)

    def test_a_clock_that_is_adjusted_slowly_does_not_jump(self) -> None:
        time_s, now = 5.0, 1000.0
        watch = ClockWatch(lambda: time_s)
        for _ in range(100):
            time_s, now = time_s + 5.0, now + 5.1
            assert not watch.has_jumped(now)


def jump(farm: Farm, by_s: float) -> None:
    """Set the clock."""
    farm.now += by_s
    farm.clock_set_s += by_s


@pytest.mark.parametrize("jumps", [(DAY_S, DAY_S, DAY_S), (DAY_S, -2 * DAY_S, DAY_S), (-DAY_S,) * 3])
def test_no_trial_is_given_up_because_the_clock_was_set(farm: Farm, jumps: tuple[float, ...]) -> None:
    farm.now = 100 * DAY_S
    farm.submit()
    farm.plug_in()
    for by_s in jumps:
        farm.sweep()
        assert farm.lease() is not None
        jump(farm, by_s)
        farm.now += 10.0
        farm.sweep()
        assert {trial.state for trial in farm.trials()} == {"pending"}, "the lease is over"
        assert {trial.attempts for trial in farm.trials()} == {0}
    farm.finish()
    assert Outcome.DEVICE_LOST not in {trial.outcome for trial in farm.trials()}


def test_devices_that_are_lost_count_as_before(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.sweep()
    for _ in range(2):
        assert farm.lease() is not None
        farm.now += 61.0
        farm.sweep()
    assert Outcome.DEVICE_LOST in {trial.outcome for trial in farm.trials()}
