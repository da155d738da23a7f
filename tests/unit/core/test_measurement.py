from __future__ import annotations

import pytest

from core.measurement import Measurement, Outcome


def test_the_latency_is_the_median_of_the_repeats() -> None:
    assert Measurement(Outcome.OK, (3.0, 1.0, 100.0)).latency_s == 3.0


def test_a_failure_has_no_latency() -> None:
    with pytest.raises(ValueError, match="no latency: the trial ended as run_error"):
        _ = Measurement(Outcome.RUN_ERROR, error="boom").latency_s


@pytest.mark.parametrize("secs", [(0.0,), (-1.0,), (float("inf"),), (float("nan"),), (1.0, 0.0)])
def test_times_are_positive_and_finite(secs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        Measurement(Outcome.OK, secs)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_successful_measurements_have_times(outcome: Outcome) -> None:
    wrong = () if outcome is Outcome.OK else (1.0,)
    with pytest.raises(ValueError, match="if and only if it succeeded"):
        Measurement(outcome, wrong)


def test_unknown_outcomes_are_failures() -> None:
    assert Outcome("melted") is Outcome.UNKNOWN
