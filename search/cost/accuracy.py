"""Metrics of a cost model on records that it was not trained on (section 7.5 of the paper). The paper reports
an R2 of 0.958, pairwise accuracy of 0.851 and recall@30 of 0.624 after 20,000 training records.

As in the paper, the compared quantity is throughput relative to the task's best: 1 for the fastest program
known, 0 for a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.programs.nest import Floats

TOP = 30


@dataclass(frozen=True)
class ModelMetrics:
    """Metrics over `records` records. A metric is None if all records are equally fast, no two belong to one
    task, or there are too few.

    `r2` is the explained fraction of the throughputs' variance, with predictions cut off at the best known
    throughput. Below 0, predictions are worse than the mean. `pairwise` is the fraction of pairs within a
    task that are predicted in the right order. `recall` is the fraction of the TOP fastest programs among the
    TOP fastest predictions.
    """

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


@dataclass(frozen=True)
class Predictions:
    """Predicted and measured seconds. Every array is [records].

    `measured_s` is inf for failures. `task` is the task of each record, and `best_s` the seconds of that
    task's fastest known program, inf if none ran.
    """

    predicted_s: Floats
    measured_s: Floats
    best_s: Floats
    task: NDArray[np.int64]

    def take(self, rows: NDArray[np.bool_]) -> Predictions:
        return Predictions(self.predicted_s[rows], self.measured_s[rows], self.best_s[rows], self.task[rows])


def evaluate(predictions: Predictions) -> ModelMetrics:
    """Return the metrics of all tasks together, without tasks that have no working program."""
    ran = predictions.take(np.isfinite(predictions.best_s))
    predicted, actual = ran.best_s / ran.predicted_s, ran.best_s / ran.measured_s
    return ModelMetrics(
        len(actual),
        _r2(np.minimum(predicted, 1.0), actual),
        _pairwise(ran.predicted_s, ran.measured_s, ran.task),
        _recall(predicted, actual, TOP),
    )


def by_task(predictions: Predictions) -> dict[int, ModelMetrics]:
    """Return the metrics of each task."""
    task = predictions.task
    return {int(number): evaluate(predictions.take(task == number)) for number in np.unique(task)}


def _r2(predicted: Floats, actual: Floats) -> float | None:
    spread = float(((actual - actual.mean()) ** 2).sum()) if len(actual) else 0.0
    return 1 - float(((predicted - actual) ** 2).sum()) / spread if spread > 0 else None


def _pairwise(predicted_s: Floats, measured_s: Floats, task: NDArray[np.int64]) -> float | None:
    """Return the fraction of pairs in the right order. Equal predictions of unequal programs count half."""
    right = pairs = 0.0
    for number in np.unique(task):
        rows = np.flatnonzero(task == number)
        faster = measured_s[rows, None] < measured_s[rows]
        order = np.sign(predicted_s[rows] - predicted_s[rows, None])
        pairs += faster.sum()
        right += ((order + 1) / 2 * faster).sum()
    return float(right / pairs) if pairs else None


def _recall(predicted: Floats, actual: Floats, top: int) -> float | None:
    if len(actual) <= top:
        return None
    fastest = np.argsort(-actual, kind="stable")[:top]
    chosen = np.argsort(-predicted, kind="stable")[:top]
    return len(np.intersect1d(fastest, chosen)) / top
