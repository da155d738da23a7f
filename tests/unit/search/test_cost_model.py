from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.cost.estimate import Estimate
from search.cost.features import NUM_FEATURES
from search.cost.model import MIN_RECORDS, CostModel, Examples
from search.programs.nest import Floats

RNG = np.random.default_rng(7)


def _estimate(seconds: Floats) -> Estimate:
    return Estimate(seconds, {})


def _examples(count: int, correction: Callable[[Floats], Floats]) -> Examples:
    """Return examples whose analytic seconds are constant and whose measured ones depend on the first
    feature."""
    features = RNG.normal(size=(count, NUM_FEATURES)).astype(np.float32)
    analytic = np.exp(RNG.normal(-7.0, 0.3, size=count))
    measured = analytic * correction(features[:, 0].astype(np.float64))
    return Examples(features, analytic, measured, np.zeros(count, dtype=np.int64))


def _slower_with_the_first(feature: Floats) -> Floats:
    return np.exp(feature)


def _pairs_in_order(predicted: Floats, measured: Floats) -> float:
    """Return the share of pairs that are predicted in the measured order."""
    first, second = np.triu_indices(len(measured), 1)
    return float(np.mean((predicted[first] < predicted[second]) == (measured[first] < measured[second])))


def test_with_few_records_the_analytic_model_decides() -> None:
    examples = _examples(MIN_RECORDS - 1, _slower_with_the_first)
    model = CostModel.train(examples)
    predicted = model.predict(examples.features, _estimate(examples.analytic_s))
    assert np.array_equal(predicted, examples.analytic_s)


def test_failures_do_not_count_as_records() -> None:
    examples = _examples(3 * MIN_RECORDS, _slower_with_the_first)
    measured = np.where(np.arange(3 * MIN_RECORDS) < MIN_RECORDS - 1, examples.measured_s, np.inf)
    failed = Examples(examples.features, examples.analytic_s, measured, examples.task)
    predicted = CostModel.train(failed).predict(examples.features, _estimate(examples.analytic_s))
    assert np.array_equal(predicted, examples.analytic_s)


def test_the_model_learns_the_analytic_models_errors() -> None:
    model = CostModel.train(_examples(300, _slower_with_the_first))
    unseen = _examples(200, _slower_with_the_first)
    predicted = model.predict(unseen.features, _estimate(unseen.analytic_s))
    assert _pairs_in_order(unseen.analytic_s, unseen.measured_s) < 0.7
    assert _pairs_in_order(predicted, unseen.measured_s) > 0.85


def test_predictions_are_seconds() -> None:
    model = CostModel.train(_examples(300, lambda feature: np.full_like(feature, 3.0)))
    unseen = _examples(50, lambda feature: np.full_like(feature, 3.0))
    predicted = model.predict(unseen.features, _estimate(unseen.analytic_s))
    assert np.allclose(predicted, unseen.measured_s, rtol=0.1)


def test_failures_rank_behind_every_program_that_ran() -> None:
    examples = _examples(300, lambda feature: np.exp(0.1 * feature))
    fails = examples.features[:, 3] > 0.5
    measured = np.where(fails, np.inf, examples.measured_s)
    model = CostModel.train(Examples(examples.features, examples.analytic_s, measured, examples.task))
    unseen = _examples(200, lambda feature: np.exp(0.1 * feature))
    # All have the same analytic estimate, so only the learned part distinguishes them.
    predicted = model.predict(unseen.features, _estimate(np.full(200, np.exp(-7.0))))
    far = np.abs(unseen.features[:, 3] - 0.5) > 0.2
    assert (
        predicted[far & (unseen.features[:, 3] > 0.5)].min()
        > predicted[far & (unseen.features[:, 3] < 0.5)].max()
    )


def test_a_task_where_nothing_ran_is_learned_with_the_others() -> None:
    examples = _examples(60, _slower_with_the_first)
    task = np.where(np.arange(60) < 40, 0, 1)
    measured = np.where(task == 0, examples.measured_s, np.inf)
    model = CostModel.train(Examples(examples.features, examples.analytic_s, measured, task))
    predicted = model.predict(examples.features, _estimate(examples.analytic_s))
    assert np.isfinite(predicted).all()


def test_the_same_examples_train_the_same_model() -> None:
    examples = _examples(100, _slower_with_the_first)
    first, second = (
        CostModel.train(examples).predict(examples.features, _estimate(examples.analytic_s)) for _ in range(2)
    )
    assert np.array_equal(first, second)


@given(
    st.lists(st.one_of(st.just(np.inf), st.floats(1e-9, 1e3)), max_size=60),
    st.integers(1, 5),
    st.booleans(),
)
def test_training_never_raises(measured: list[float], tasks: int, missing: bool) -> None:
    count = len(measured)
    features = np.full((count, NUM_FEATURES), np.nan if missing else 1.0, dtype=np.float32)
    examples = Examples(features, np.full(count, 1e-4), np.array(measured), np.arange(count) % tasks)
    predicted = CostModel.train(examples).predict(features, _estimate(examples.analytic_s))
    assert predicted.shape == (count,)
    assert (predicted > 0).all()


@pytest.mark.parametrize("count", [0, 1])
def test_a_trained_model_predicts_any_number_of_programs(count: int) -> None:
    model = CostModel.train(_examples(50, _slower_with_the_first))
    few = _examples(count, _slower_with_the_first)
    assert model.predict(few.features, _estimate(few.analytic_s)).shape == (count,)


def test_a_model_is_the_same_after_a_round_trip() -> None:
    examples = _examples(3 * MIN_RECORDS, _slower_with_the_first)
    model = CostModel.train(examples)
    again = CostModel.from_bytes(model.to_bytes())
    guess = _estimate(examples.analytic_s)
    assert again.is_learned
    assert np.array_equal(again.predict(examples.features, guess), model.predict(examples.features, guess))


def test_the_analytic_model_has_no_bytes() -> None:
    assert CostModel().to_bytes() == b""
    assert not CostModel.from_bytes(b"").is_learned


def test_models_of_other_features_and_other_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CostModel.train(_examples(3 * MIN_RECORDS, _slower_with_the_first)).to_bytes()
    monkeypatch.setattr("search.cost.model.FEATURES_VERSION", "0:other")
    with pytest.raises(ValueError, match="other features"):
        CostModel.from_bytes(data)
    with pytest.raises(ValueError, match="no model"):
        CostModel.from_bytes(data[: len(data) // 2])
