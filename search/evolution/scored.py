"""Populations with predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.programs.nest import Floats
from search.programs.program import Population
from search.sketches.factors import Ints


@dataclass(frozen=True)
class Scored:
    """A population, the predicted `seconds` of its programs, and the seconds of every stage, by node:
    [programs] each. Another model predicts the programs from the same `features` and the same analytic
    estimate, `analytic_s`.
    """

    population: Population
    seconds: Floats
    stages: Mapping[str, Floats]
    features: NDArray[np.float32]
    analytic_s: Floats

    def __len__(self) -> int:
        return len(self.population)

    def take(self, rows: Ints) -> Scored:
        stages = {node: seconds[rows] for node, seconds in self.stages.items()}
        return Scored(
            self.population.take(rows),
            self.seconds[rows],
            stages,
            self.features[rows],
            self.analytic_s[rows],
        )


# Predicts the programs of a population.
Score = Callable[[Population], Scored]


def join(parts: Sequence[Scored]) -> Scored:
    """Return the programs of several populations of one sketch, each program once, fastest first."""
    everything = parts[0]
    if len(parts) > 1:
        everything = _concatenated(parts)
    rows = everything.population.distinct_rows()
    return everything.take(rows[np.argsort(everything.seconds[rows], kind="stable")])


def merge(known: Scored, new: Scored) -> Scored:
    """Return the programs of two populations that share none, fastest first."""
    everything = _concatenated([known, new])
    return everything.take(np.argsort(everything.seconds, kind="stable"))


def _concatenated(parts: Sequence[Scored]) -> Scored:
    return Scored(
        Population(parts[0].population.sketch, np.concatenate([part.population.values for part in parts])),
        np.concatenate([part.seconds for part in parts]),
        {node: np.concatenate([part.stages[node] for part in parts]) for node in parts[0].stages},
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.analytic_s for part in parts]),
    )
