from __future__ import annotations

import numpy as np
import pytest

from core.measurement import Measurement, Outcome, confidence_interval


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


def test_a_confidence_interval_takes_repeats_of_one_turn_together() -> None:
    """Five turns of 40 repeats differ by 2%, and repeats of a turn hardly: the turns decide."""
    turns = [1.0, 1.01, 1.02, 1.03, 1.04]
    interval = confidence_interval([turn + repeat * 1e-6 for turn in turns for repeat in range(40)])
    assert interval == pytest.approx((1.0004, 1.0397), abs=1e-4)
    assert confidence_interval([1.0] * 10) == (1.0, 1.0)
    assert confidence_interval([1.0] * 9) is None


def test_a_confidence_interval_holds_the_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [confidence_interval(rng.normal(1.0, 0.05, 200).tolist()) for _ in range(500)]
    assert 0.92 < np.mean([found is not None and found[0] <= 1.0 <= found[1] for found in intervals]) < 0.98
