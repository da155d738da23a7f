"""Populations with predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from search.programs.nest import Floats
from search.programs.program import Population
from search.sketches.factors import Ints


@dataclass(frozen=True)
class Scored:
    """A population, the predicted `seconds` of its programs, and the seconds of every stage, by node:
    [programs] each.
    """

    population: Population
    seconds: Floats
    stages: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.population)

    def take(self, rows: Ints) -> Scored:
        stages = {node: seconds[rows] for node, seconds in self.stages.items()}
        return Scored(self.population.take(rows), self.seconds[rows], stages)


# Predicts the programs of a population.
Score = Callable[[Population], Scored]


def join(parts: list[Scored]) -> Scored:
    """Return the programs of several populations of one sketch, each program once, fastest first."""
    first = parts[0].population
    everything = Population(first.sketch, np.concatenate([part.population.values for part in parts]))
    rows = everything.distinct_rows()
    seconds = np.concatenate([part.seconds for part in parts])
    rows = rows[np.argsort(seconds[rows], kind="stable")]
    stages = {node: np.concatenate([part.stages[node] for part in parts])[rows] for node in parts[0].stages}
    return Scored(everything.take(rows), seconds[rows], stages)
