"""How well a cost model predicts records that it was not trained on (the paper's section 7.5; its figures,
after 20,000 training records, in ansor-facts section D: R2 0.958, pairwise accuracy 0.851, recall@30 0.624).

As in the paper, what is compared is throughput relative to the task's best: 1 for the fastest program known
of it, 0 for one that failed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.programs.nest import Floats

TOP = 30


@dataclass(frozen=True)
class ModelMetrics:
    """Of so many `records`. None where they can't tell: all equally fast, no two of a task, or too few.

    `r2` is the share of the throughputs' variance that is predicted (below 0: worse than their mean; nothing
    is taken to be faster than the best known), `pairwise` the share of pairs of one task that are predicted
    in the right order, `recall` the share of the TOP fastest that are among the TOP predicted to be the
    fastest.
    """

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


@dataclass(frozen=True)
class Predictions:
    """What was predicted of records, and what was measured: all arrays are [records].

    `measured_s` are inf for failures; `task` says whose record each is, `best_s` how fast the fastest program
    known of that task is, inf where nothing ran.
    """

    predicted_s: Floats
    measured_s: Floats
    best_s: Floats
    task: NDArray[np.int64]

    def take(self, rows: NDArray[np.bool_]) -> Predictions:
        return Predictions(self.predicted_s[rows], self.measured_s[rows], self.best_s[rows], self.task[rows])


def evaluate(predictions: Predictions) -> ModelMetrics:
    """Metrics of all tasks together; those of which nothing ran are left out."""
    told = predictions.take(np.isfinite(predictions.best_s))
    guessed, actual = told.best_s / told.predicted_s, told.best_s / told.measured_s
    return ModelMetrics(
        len(actual),
        _r2(np.minimum(guessed, 1.0), actual),
        _pairwise(told.predicted_s, told.measured_s, told.task),
        _recall(guessed, actual, TOP),
    )


def by_task(predictions: Predictions) -> dict[int, ModelMetrics]:
    """As `evaluate`, of every task by itself."""
    task = predictions.task
    return {int(number): evaluate(predictions.take(task == number)) for number in np.unique(task)}


def _r2(guessed: Floats, actual: Floats) -> float | None:
    spread = float(((actual - actual.mean()) ** 2).sum()) if len(actual) else 0.0
    return 1 - float(((guessed - actual) ** 2).sum()) / spread if spread > 0 else None


def _pairwise(predicted_s: Floats, measured_s: Floats, task: NDArray[np.int64]) -> float | None:
    """Equal predictions of unequal programs count half."""
    right = pairs = 0.0
    for number in np.unique(task):
        rows = np.flatnonzero(task == number)
        faster = measured_s[rows, None] < measured_s[rows]
        guess = np.sign(predicted_s[rows] - predicted_s[rows, None])
        pairs += faster.sum()
        right += ((guess + 1) / 2 * faster).sum()
    return float(right / pairs) if pairs else None


def _recall(guessed: Floats, actual: Floats, top: int) -> float | None:
    if len(actual) <= top:
        return None
    fastest = np.argsort(-actual, kind="stable")[:top]
    chosen = np.argsort(-guessed, kind="stable")[:top]
    return len(np.intersect1d(fastest, chosen)) / top
