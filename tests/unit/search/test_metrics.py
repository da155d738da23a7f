from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.cost.accuracy import TOP, ModelMetrics, Predictions, by_task, evaluate

seconds = st.floats(1e-6, 1.0)


def told(predicted: list[float], measured: list[float], task: list[int] | None = None) -> Predictions:
    """The best of each task is among the records."""
    tasks = task or [0] * len(measured)
    best = [min(s for s, other in zip(measured, tasks, strict=True) if other == own) for own in tasks]
    return Predictions(
        np.array(predicted), np.array(measured), np.array(best), np.array(tasks, dtype=np.int64)
    )


def of(predicted: list[float], measured: list[float], task: list[int] | None = None) -> ModelMetrics:
    return evaluate(told(predicted, measured, task))


def test_a_perfect_model_has_metrics_of_one() -> None:
    measured = [(n + 1) * 1e-3 for n in range(3 * TOP)]
    assert of(measured, measured) == ModelMetrics(3 * TOP, 1.0, 1.0, 1.0)


def test_the_reverse_order_has_the_worst_metrics() -> None:
    measured = [(n + 1) * 1e-3 for n in range(3 * TOP)]
    found = of(measured[::-1], measured)
    assert (found.pairwise, found.recall) == (0.0, 0.0)
    assert found.r2 is not None
    assert found.r2 < 0


def test_metrics_equal_a_worked_example() -> None:
    """Throughputs 1, 1/2, 1/4 predicted as 1/2, 1/2, 1/4: the error is 1/4, the mean 7/12."""
    found = of([2e-3, 2e-3, 4e-3], [1e-3, 2e-3, 4e-3])
    spread = sum((value - 7 / 12) ** 2 for value in (1, 1 / 2, 1 / 4))
    assert found.r2 == pytest.approx(1 - 0.25 / spread)
    assert found.pairwise == pytest.approx(2.5 / 3)
    assert found.recall is None


def test_predictions_are_cut_off_at_the_best_known() -> None:
    assert of([1e-6, 2e-3, 4e-3], [1e-3, 2e-3, 4e-3]).r2 == 1.0


def test_the_best_known_need_not_be_among_the_records() -> None:
    """Throughputs 1/2 and 1/4 of the best, predicted as 1/2 and 1/2."""
    seen = told([2e-3, 2e-3], [2e-3, 4e-3])
    assert evaluate(replace(seen, best_s=np.full(2, 1e-3))).r2 == pytest.approx(1 - 0.0625 / (2 * 0.125**2))


def test_a_failure_is_the_slowest_of_all() -> None:
    assert of([1e-3, 2e-3, 9.0], [1e-3, 2e-3, math.inf]).pairwise == 1.0
    assert of([1e-3, 2e-3, 1e-4], [1e-3, 2e-3, math.inf]).pairwise == pytest.approx(1 / 3)


def test_recall_counts_the_chosen_fastest_programs() -> None:
    measured = [(n + 1) * 1e-3 for n in range(2 * TOP)]
    predicted = list(measured)
    predicted[0], predicted[-1] = predicted[-1], predicted[0]
    assert of(predicted, measured).recall == pytest.approx((TOP - 1) / TOP)


def test_programs_of_different_tasks_are_no_pairs() -> None:
    """The second task is a thousand times slower, which doesn't have to be predicted."""
    measured, task = [1e-3, 2e-3, 1.0, 2.0], [0, 0, 1, 1]
    assert of([1.0, 2.0, 1e-3, 2e-3], measured, task).pairwise == 1.0
    assert of([1e-3, 2e-3, 2.0, 1.0], measured, task).pairwise == 0.5


def test_tasks_of_which_nothing_ran_are_left_out() -> None:
    found = of([1e-3, 2e-3, 3e-3], [1e-3, 2e-3, math.inf], [0, 0, 1])
    assert (found.records, found.r2) == (2, 1.0)


@pytest.mark.parametrize("measured", [[], [1e-3], [1e-3, 1e-3], [math.inf, math.inf]])
def test_undefined_metrics_are_none(measured: list[float]) -> None:
    found = of([1e-3] * len(measured), measured)
    assert (found.r2, found.pairwise, found.recall) == (None, None, None)


def test_each_task_has_its_own_metrics() -> None:
    found = by_task(told([1e-3, 2e-3, 2.0, 1.0], [1e-3, 2e-3, 1.0, 2.0], [3, 3, 5, 5]))
    assert {number: metrics.pairwise for number, metrics in found.items()} == {3: 1.0, 5: 0.0}


@given(st.lists(st.tuples(seconds, seconds, st.integers(0, 2)), min_size=1, max_size=20))
def test_pairwise_accuracy_equals_a_count_of_pairs(rows: list[tuple[float, float, int]]) -> None:
    pairs = [(a, b) for a, b in itertools.permutations(rows, 2) if a[2] == b[2] and a[1] < b[1]]
    scores = [1.0 if a[0] < b[0] else 0.5 if a[0] == b[0] else 0.0 for a, b in pairs]
    found = of([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
    if pairs:
        assert found.pairwise == pytest.approx(sum(scores) / len(scores))
    else:
        assert found.pairwise is None
