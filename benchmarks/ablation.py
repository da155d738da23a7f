"""Our search without one of its parts at a time, to see what each of them gains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, figure, number
from benchmarks.judge import Judge
from benchmarks.ours import OurSpace, Variant
from benchmarks.searches import Search
from benchmarks.suite import OPERATORS
from compiler.target import probe
from search.analytic import Estimate
from search.dag import Dag
from search.device import Device
from search.evolve import EvolutionConfig
from search.policy import SearchConfig, SearchTask
from search.program import Population
from search.sketch import Sketch, read_kind
from search.variables import Choice, Variable

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


VARIANTS: Mapping[str, Variant] = {
    EVERYTHING: Variant(),
    "no analytic model": Variant(task=NoEstimate),
    "no learned model": Variant(learns=False),
    "no evolution": Variant(config=SearchConfig(EvolutionConfig(generations=0))),
    "no crossover": Variant(config=SearchConfig(EvolutionConfig(crossover=0.0))),
    "limited space": Variant(task=first_sketch),
    "no diversity": Variant(config=SearchConfig(same_tile=1.0)),
}


def run(operator: str, trials: int, threads: int, seed: int) -> tuple[Search, ...]:
    """Every variant's search from the same seed, timed by the same bench.

    Wants a process of its own, with TVM_NUM_THREADS in the environment. Raises NotCovered.
    """
    device = probe(threads)
    module = OPERATORS[operator].module(OPERATORS[operator].benchmark)
    judge = Judge(module, device)
    found = []
    for name, variant in VARIANTS.items():
        space = OurSpace(module, device, variant)
        searched = space.tune(trials, judge.timed, np.random.default_rng(seed))
        timed = ((trial.at_s, trial.secs) for trial in searched.trials)
        found.append(Search.of(operator, name, timed))
        print(f"  {operator}: {name}", flush=True)
    return tuple(found)


def figures_of(found: Sequence[Search], trials: int) -> list[Figure]:
    """What each variant's best costs against that of the whole search, after some trials and after all."""
    counts = sorted({count for count in AFTER if count < trials} | {trials})
    return [
        each
        for variant in VARIANTS
        if variant != EVERYTHING
        for count in counts
        for each in _cost(found, variant, count)
    ]


def _cost(found: Sequence[Search], variant: str, count: int) -> list[Figure]:
    """One figure; none where no operator has both."""
    best = {(search.operator, search.engine): search.best_after(count) for search in found}
    ratios: dict[str, float] = {}
    for operator in dict.fromkeys(search.operator for search in found):
        without, whole = best.get((operator, variant)), best.get((operator, EVERYTHING))
        if without is not None and whole is not None:
            ratios[operator] = without / whole
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
