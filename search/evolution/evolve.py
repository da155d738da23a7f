"""Evolutionary search over whole populations (paper section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from search.evolution.crossover import StageSeconds, cross, node_groups
from search.evolution.mutate import mutate
from search.programs.annotate import keep_valid, sample
from search.programs.nest import Floats
from search.programs.program import Population, Program, gather
from search.sketches.sketch import Sketch

# How often to redraw a population without a valid program.
MAX_DRAWS = 8

Predict = Callable[[Population], Floats]


@dataclass(frozen=True)
class EvolutionConfig:
    """Sizes of the evolution of one sketch.

    `measured_fraction` is the largest fraction of measured programs in the initial population. `crossover` is
    the fraction of a generation that combines two parents; the others mutate one.
    """

    population: int = 1024
    generations: int = 8
    measured_fraction: float = 0.2
    crossover: float = 0.2

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 0:
            raise ValueError("evolution needs at least two programs and no negative generations")
        if not 0.0 <= self.crossover <= 1.0:
            raise ValueError(f"crossover must be a fraction from 0 to 1, not {self.crossover}")


def evolve(
    sketch: Sketch,
    predict: Predict,
    stage_seconds: StageSeconds,
    measured: Sequence[Program],
    rng: np.random.Generator,
    config: EvolutionConfig,
) -> tuple[Population, Floats]:
    """Return every distinct program of all generations and its predicted seconds, fastest first.

    `stage_seconds` scores the stages of parents. `measured` are programs, best first; programs of this sketch
    join the initial population.
    """
    population = _initial_population(sketch, measured, rng, config)
    if len(population) == 0:
        return population, np.zeros(0)
    seconds = predict(population)
    generations = [(population.values, seconds)]
    for _ in range(config.generations):
        population = _next_generation(population, seconds, stage_seconds, rng, config)
        seconds = predict(population)
        generations.append((population.values, seconds))
    everything = Population(sketch, np.concatenate([values for values, _ in generations]))
    rows = everything.distinct_rows()
    predicted = np.concatenate([seconds for _, seconds in generations])[rows]
    order = np.argsort(predicted, kind="stable")
    return everything.take(rows[order]), predicted[order]


def _initial_population(
    sketch: Sketch, measured: Sequence[Program], rng: np.random.Generator, config: EvolutionConfig
) -> Population:
    for _ in range(MAX_DRAWS):
        drawn = sample(sketch, config.population, rng)
        if len(drawn):
            break
    limit = int(config.measured_fraction * config.population)
    of_sketch = [program for program in measured if program.sketch.key == sketch.key][:limit]
    if not of_sketch:
        return drawn
    return Population(sketch, np.concatenate([gather(of_sketch).values, drawn.values]))


def _next_generation(
    population: Population,
    seconds: Floats,
    stage_seconds: StageSeconds,
    rng: np.random.Generator,
    config: EvolutionConfig,
) -> Population:
    # Roulette over predicted throughput: twice as fast is twice as likely to have children.
    share = 1.0 / seconds
    share /= share.sum()
    # A sketch with a single group of nodes has nothing to combine.
    count = round(config.crossover * config.population) if len(node_groups(population.sketch)) > 1 else 0
    parents = population.take(rng.choice(len(population), size=config.population, p=share))
    children = mutate(parents.take(np.arange(count, config.population)), rng).values
    if count:
        mates = population.take(rng.choice(len(population), size=count, p=share))
        crossed = cross(parents.take(np.arange(count)), mates, stage_seconds)
        children = np.concatenate([crossed.values, children])
    survivors = keep_valid(Population(population.sketch, children))
    return survivors if len(survivors) else population
