"""Compare the accuracy of the learned and the analytic cost model on records outside the training set."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from search.cost import accuracy
from search.cost.accuracy import Predictions, by_task
from search.cost.estimate import Estimate
from search.cost.model import CostModel
from search.policy import Sample, train

HELD_OUT = 0.2


class Example(NamedTuple):
    """A sample, and the hash of its workload."""

    workload: str
    sample: Sample


def evaluate(examples: Sequence[Example]) -> dict[str, Any]:
    """Return, as JSON, the metrics of the learned and the analytic model on a random fifth of the examples.

    `learned` and `analytic` hold the metrics over all workloads, `tasks` both of them for each workload. The
    learned model is trained on the other examples; `trained_on` is their number.
    """
    held = np.random.default_rng(0).random(len(examples)) < HELD_OUT
    seen = [example for example, is_held in zip(examples, held, strict=True) if not is_held]
    unseen = [example for example, is_held in zip(examples, held, strict=True) if is_held]
    best_s: dict[str, float] = defaultdict(lambda: math.inf)
    for workload, (_, _, seconds) in examples:
        best_s[workload] = min(best_s[workload], seconds)
    models = {"learned": train([example.sample for example in seen]), "analytic": CostModel()}
    predictions = {kind: _predict(unseen, model, best_s) for kind, model in models.items()}
    tasks = {kind: by_task(predicted) for kind, predicted in predictions.items()}
    return {
        "trained_on": len(seen),
        **{kind: asdict(accuracy.evaluate(predicted)) for kind, predicted in predictions.items()},
        "tasks": {
            workload: {kind: asdict(found[number]) for kind, found in tasks.items()}
            for number, workload in enumerate(_workloads(unseen))
        },
    }


def _predict(examples: Sequence[Example], model: CostModel, best_s: Mapping[str, float]) -> Predictions:
    """Return the model's predictions. Workloads are numbered in the order of `_workloads`."""
    predicted_s = np.zeros(len(examples))
    rows_of_workload: dict[str, list[int]] = defaultdict(list)
    for row, example in enumerate(examples):
        rows_of_workload[example.workload].append(row)
    for rows in rows_of_workload.values():
        described = examples[rows[0]].sample[0].examples([examples[row].sample[1] for row in rows])
        analytic_s = np.array([seconds for _, seconds in described])
        features = np.stack([features for features, _ in described])
        predicted_s[rows] = model.predict(features, Estimate(analytic_s))
    numbers = {workload: number for number, workload in enumerate(_workloads(examples))}
    return Predictions(
        predicted_s=predicted_s,
        measured_s=np.array([example.sample[2] for example in examples]),
        best_s=np.array([best_s[example.workload] for example in examples]),
        task=np.array([numbers[example.workload] for example in examples], dtype=np.int64),
    )


def _workloads(examples: Sequence[Example]) -> list[str]:
    return list(dict.fromkeys(example.workload for example in examples))
