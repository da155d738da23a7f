"""Our search without one of its parts at a time, to see what each of them gains."""

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
from benchmarks.timing.finals import SearchResult, milestones_up_to
from core.device import Device
from search.dag import Dag
from search.evolution.evolve import EvolutionConfig
from search.policy import SearchConfig, SearchTask
from search.programs.program import Population
from search.sketches.sketch import Sketch
from search.sketches.stage import Estimate
from search.sketches.variables import Choice, Variable, read_kind

EVERYTHING = "everything"
AFTER = (16, 64)


class NoEstimate(SearchTask):
    """Every program is estimated to take one second; the learned model still sees all quantities."""

    def describe(self, population: Population) -> tuple[NDArray[np.float32], Estimate]:
        features, guess = super().describe(population)
        return features, replace(guess, seconds=np.ones(len(population)))


class DirectReads(Sketch):
    """A sketch whose tiled nodes read every operand as it lies."""

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in super().variables if not _is_reading(variable))


def first_sketch(dag: Dag, sketches: tuple[Sketch, ...], device: Device) -> SearchTask:
    """One structure, without copies and packed operands: about what a template leaves open."""
    only = sketches[0]
    return SearchTask(dag, (DirectReads(only.dag, only.stages, only.gpu),), device)


def _is_reading(variable: Variable) -> bool:
    return isinstance(variable, Choice) and variable.kind.startswith(read_kind(""))


def _evolving(change: Callable[[EvolutionConfig], EvolutionConfig]) -> SearchConfig:
    """Changed alike before and after anything was learned."""
    usual = SearchConfig()
    return replace(usual, evolution=change(usual.evolution), blind=change(usual.blind))


VARIANTS: Mapping[str, Variant] = {
    EVERYTHING: Variant(),
    "no analytic model": Variant(task=NoEstimate),
    "no learned model": Variant(learns=False),
    "no evolution": Variant(config=_evolving(lambda usual: replace(usual, generations=0))),
    "no crossover": Variant(config=_evolving(lambda usual: replace(usual, crossover=0.0))),
    "limited space": Variant(task=first_sketch),
    "no diversity": Variant(config=SearchConfig(same_tile=1.0)),
    "nothing left out": Variant(config=SearchConfig(hopeless=math.inf)),
    "nothing measured again": Variant(measures_again=False),
}


def milestones(trials: int) -> tuple[int, ...]:
    """After so many of its trials a variant is compared with everything."""
    return milestones_up_to(trials, AFTER)


def run(operator: str, trials: int, rounds: int, threads: int, seed: int) -> tuple[SearchResult, ...]:
    """See `compare_variants`."""
    return compare_variants(operator, VARIANTS, trials, milestones(trials), rounds, threads, seed)


def figures_of(found: Sequence[SearchResult], trials: int) -> list[Figure]:
    """What each variant's best costs against that of the whole search, after some trials and after all."""
    return [
        each
        for variant in VARIANTS
        if variant != EVERYTHING
        for count in milestones(trials)
        for each in _cost(found, variant, count)
    ]


def _cost(found: Sequence[SearchResult], variant: str, count: int) -> list[Figure]:
    """One figure; none where no operator has both."""
    judged = {(side.search.operator, side.search.engine): side.after(count) for side in found}
    ratios: dict[str, float] = {}
    for operator in dict.fromkeys(side.search.operator for side in found):
        without, whole = judged.get((operator, variant)), judged.get((operator, EVERYTHING))
        if without is not None and whole is not None:
            ratios[operator] = without.timings.ratio_to(whole.timings).value
    if not ratios:
        return []
    worst = max(ratios, key=lambda operator: ratios[operator])
    name = f"{variant}: latency after {count} trials relative to that of {EVERYTHING}"
    return [
        figure(
            f"geometric mean of {len(ratios)} operators: {name}",
            statistics.geometric_mean(ratios.values()),
            "x",
            peer=f"most: {number(ratios[worst])} on {worst}",
        )
    ]
