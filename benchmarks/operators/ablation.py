"""Compare our search with variants that lack one part each, to measure the gain of each part."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines.tunefarm_search import Variant
from benchmarks.operators.variants import compare_variants
from benchmarks.results.figures import Figure, figure, number
from benchmarks.results.metrics import after_trials
from benchmarks.timing.finals import SearchResult, milestones_up_to
from core.device import Device
from search.cost.estimate import Estimate
from search.dag import Dag
from search.evolution.evolve import EvolutionConfig
from search.policy import SearchConfig, TuneContext
from search.programs.program import Population
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice, Variable, read_kind

EVERYTHING = "everything"
AFTER = (16, 64)


class NoEstimate(TuneContext):
    """A tuning context whose estimate is one second for every program. The learned model still gets all
    features."""

    def describe(self, population: Population) -> tuple[NDArray[np.float32], Estimate]:
        features, guess = super().describe(population)
        return features, replace(guess, seconds=np.ones(len(population)))


class DirectReads(Sketch):
    """A sketch whose tiled nodes read all operands in place, without copies."""

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(
            variable
            for variable in super().variables
            if not (isinstance(variable, Choice) and variable.kind.startswith(read_kind("")))
        )


def first_sketch(dag: Dag, sketches: tuple[Sketch, ...], device: Device) -> TuneContext:
    """Keep the first sketch without copies and packed operands, similar to a template's search space."""
    only = sketches[0]
    return TuneContext(dag, (DirectReads(only.dag, only.stages, only.gpu),), device)


def _with_evolution(change: Callable[[EvolutionConfig], EvolutionConfig]) -> SearchConfig:
    """Return a search configuration with changed evolution, with and without a learned model."""
    usual = SearchConfig()
    return replace(
        usual, evolution=change(usual.evolution), untrained_evolution=change(usual.untrained_evolution)
    )


VARIANTS: Mapping[str, Variant] = {
    EVERYTHING: Variant(),
    "no analytic model": Variant(task=NoEstimate),
    "no learned model": Variant(learns=False),
    "no evolution": Variant(config=_with_evolution(lambda usual: replace(usual, generations=0))),
    "no crossover": Variant(config=_with_evolution(lambda usual: replace(usual, crossover=0.0))),
    "limited space": Variant(task=first_sketch),
    "no diversity": Variant(config=SearchConfig(max_share_per_tile=1.0)),
    "nothing left out": Variant(config=SearchConfig(max_slowdown=math.inf)),
    "nothing measured again": Variant(measures_again=False),
}


def run(operator: str, trials: int, rounds: int, threads: int, seed: int) -> tuple[SearchResult, ...]:
    """Search with every variant; see `compare_variants`."""
    after = milestones_up_to(trials, AFTER)
    return compare_variants(operator, VARIANTS, trials, after, rounds, threads, seed)


def figures_of(results: Sequence[SearchResult], trials: int) -> list[Figure]:
    """Return each variant's latency divided by the whole search's, after some trials and after all.

    A variant has no figure where no operator has both.
    """
    figures = []
    for variant in VARIANTS:
        if variant != EVERYTHING:
            for count in milestones_up_to(trials, AFTER):
                ratios = _ratios(results, variant, count)
                if ratios:
                    worst = max(ratios, key=lambda operator: ratios[operator])
                    mean = figure(
                        f"latency with {variant}",
                        statistics.geometric_mean(ratios.values()),
                        "x",
                        peer=EVERYTHING,
                        subject=f"geometric mean of {len(ratios)} operators",
                        condition=after_trials(count),
                        count=len(ratios),
                        note=f"most: {number(ratios[worst])} on {worst}",
                    )
                    figures.append(mean)
    return figures


def _ratios(results: Sequence[SearchResult], variant: str, count: int) -> dict[str, float]:
    """Return the variant's latency divided by the whole search's after `count` trials, by operator."""
    milestones = {(each.curve.operator, each.curve.engine): each.after(count) for each in results}
    ratios: dict[str, float] = {}
    for operator in dict.fromkeys(result.curve.operator for result in results):
        without, whole = milestones.get((operator, variant)), milestones.get((operator, EVERYTHING))
        if without is not None and whole is not None:
            ratios[operator] = without.timings.ratio_to(whole.timings).value
    return ratios
