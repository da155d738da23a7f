"""How well a cost model predicts records that it was not trained on (the paper's section 7.5; its figures,
after 20,000 training records, in ansor-facts section D: R2 0.958, pairwise accuracy 0.851, recall@30 0.624).

As in the paper, what is compared is throughput relative to the task's best: 1 for its fastest program, 0 for
one that failed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.nest import Floats

TOP = 30


@dataclass(frozen=True)
class Metrics:
    """Of so many `records`. None where they can't tell: all equally fast, no two of a task, or too few.

    `r2` is the share of the throughputs' variance that is predicted (below 0: worse than their mean),
    `pairwise` the share of pairs of one task that are predicted in the right order, `recall` the share of the
    TOP fastest that are among the TOP predicted to be the fastest.
    """

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


def evaluate(predicted_s: Floats, measured_s: Floats, task: NDArray[np.int64]) -> Metrics:
    """Metrics of all tasks together; `measured_s` are inf for failures, `task` says whose record each is.

    All arrays are [records]. Tasks of which nothing ran are left out.
    """
    best = _best_of_task(measured_s, task)
    ran = np.isfinite(best)
    predicted, measured, tasks = predicted_s[ran], measured_s[ran], task[ran]
    guessed, actual = best[ran] / predicted, best[ran] / measured
    return Metrics(
        len(measured),
        _r2(guessed, actual),
        _pairwise(predicted, measured, tasks),
        _recall(guessed, actual, TOP),
    )


def by_task(predicted_s: Floats, measured_s: Floats, task: NDArray[np.int64]) -> dict[int, Metrics]:
    """As `evaluate`, of every task by itself."""
    numbers = np.unique(task)
    rows = {int(number): np.flatnonzero(task == number) for number in numbers}
    return {number: evaluate(predicted_s[own], measured_s[own], task[own]) for number, own in rows.items()}


def _best_of_task(measured_s: Floats, task: NDArray[np.int64]) -> Floats:
    """[records]: the best seconds of each record's task, inf where nothing ran."""
    names, position = np.unique(task, return_inverse=True)
    best = np.full(len(names), np.inf)
    np.minimum.at(best, position, measured_s)
    return np.asarray(best[position])


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
