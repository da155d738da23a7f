"""How well the cost model predicts records that it was not trained on, beside the analytic estimate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.cost import metrics
from search.cost.metrics import Predictions, by_task
from search.cost.model import CostModel
from search.policy import Sample, train
from search.programs.nest import Floats
from search.programs.program import gather

HELD_OUT = 0.2


class Example(NamedTuple):
    """A sample and the hash of its workload."""

    workload: str
    sample: Sample


def evaluate(examples: Sequence[Example]) -> dict[str, Any]:
    """As JSON: the metrics of both models on a random fifth of the examples, the learned one trained on the
    others: `learned`, `analytic`, and both for every workload in `tasks`; how many it was `trained_on`."""
    held = np.random.default_rng(0).random(len(examples)) < HELD_OUT
    left = [example for example, is_held in zip(examples, held, strict=True) if not is_held]
    unseen = [example for example, is_held in zip(examples, held, strict=True) if is_held]
    models = {"learned": train([example.sample for example in left]), "analytic": CostModel()}
    names = list(dict.fromkeys(example.workload for example in unseen))
    told = {kind: _predictions(unseen, model, names, _best(examples)) for kind, model in models.items()}
    tasks = {kind: by_task(predictions) for kind, predictions in told.items()}
    return {
        "trained_on": len(left),
        **{kind: asdict(metrics.evaluate(predictions)) for kind, predictions in told.items()},
        "tasks": {
            name: {kind: asdict(found[number]) for kind, found in tasks.items()}
            for number, name in enumerate(names)
        },
    }


def _best(examples: Sequence[Example]) -> dict[str, float]:
    """The best seconds known of each workload."""
    best: dict[str, float] = defaultdict(lambda: math.inf)
    for workload, (_, _, seconds) in examples:
        best[workload] = min(best[workload], seconds)
    return best


def _predictions(
    unseen: Sequence[Example], model: CostModel, names: Sequence[str], best: Mapping[str, float]
) -> Predictions:
    return Predictions(
        predicted_s=_predicted(unseen, model),
        measured_s=np.array([example.sample[2] for example in unseen]),
        best_s=np.array([best[example.workload] for example in unseen]),
        task=np.array([names.index(example.workload) for example in unseen], dtype=np.int64),
    )


def _predicted(examples: Sequence[Example], model: CostModel) -> Floats:
    """[examples]: seconds, predicted for all programs of a sketch at once."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, example in enumerate(examples):
        rows[example.workload, example.sample[1].sketch.key].append(row)
    seconds: NDArray[np.float64] = np.zeros(len(examples))
    for same in rows.values():
        task = examples[same[0]].sample[0]
        seconds[same] = task.predict(gather([examples[row].sample[1] for row in same]), model)
    return seconds
