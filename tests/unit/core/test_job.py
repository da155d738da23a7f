from __future__ import annotations

import pytest

from core.job import MAX_MINUTES, MAX_TRIALS, Budget


@pytest.mark.parametrize("trials", [-1, MAX_TRIALS + 1])
def test_a_budget_of_trials_is_within_bounds(trials: int) -> None:
    with pytest.raises(ValueError, match=f"trials must be between 0 and {MAX_TRIALS}, not {trials}"):
        Budget(trials)


@pytest.mark.parametrize("minutes", [0.0, -1.0, MAX_MINUTES + 1.0, float("inf"), float("nan")])
def test_a_budget_of_minutes_is_positive_and_within_bounds(minutes: float) -> None:
    with pytest.raises(ValueError, match=f"minutes must be more than 0 and at most {MAX_MINUTES}, not"):
        Budget(1, minutes)


@pytest.mark.parametrize("budget", [(0,), (MAX_TRIALS, None), (1, 0.5), (0, MAX_MINUTES)])
def test_bounds_are_inclusive(budget: tuple[int, float | None]) -> None:
    assert Budget(*budget)
