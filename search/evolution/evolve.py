"""Evolutionary search over whole populations (paper section 5.1), by mutation alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from search.evolution.mutate import mutate
from search.programs.annotate import legal, sample
from search.programs.nest import Floats
from search.programs.program import Population, Program, gather
from search.sketches.sketch import Sketch

# How often a population is drawn again if none of it is valid.
DRAWS = 8

Predict = Callable[[Population], Floats]


@dataclass(frozen=True)
class EvolutionConfig:
    """Sizes of the evolution of one sketch.

    `measured_fraction` is the largest share of measured programs in the initial population.
    """

    population: int = 1024
    generations: int = 8
    measured_fraction: float = 0.2

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 0:
            raise ValueError("evolution needs at least two programs and no negative generations")


def evolve(
    sketch: Sketch,
    predict: Predict,
    measured: Sequence[Program],
    rng: np.random.Generator,
    config: EvolutionConfig,
) -> tuple[Population, Floats]:
    """Return every distinct program of all generations and its predicted seconds, fastest first.

    `measured` are programs, best first; programs of this sketch join the initial population.
    """
    population = _initial_population(sketch, measured, rng, config)
    if len(population) == 0:
        return population, np.zeros(0)
    seconds = predict(population)
    generations = [(population.values, seconds)]
    for _ in range(config.generations):
        population = _next_generation(population, seconds, rng, config)
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
    for _ in range(DRAWS):
        drawn = sample(sketch, config.population, rng)
        if len(drawn):
            break
    limit = int(config.measured_fraction * config.population)
    of_sketch = [program for program in measured if program.sketch.key == sketch.key][:limit]
    if not of_sketch:
        return drawn
    return Population(sketch, np.concatenate([gather(of_sketch).values, drawn.values]))


def _next_generation(
    population: Population, seconds: Floats, rng: np.random.Generator, config: EvolutionConfig
) -> Population:
    # Roulette over predicted throughput: twice as fast is twice as likely to have children.
    fitness = 1.0 / seconds
    parents = rng.choice(len(population), size=config.population, p=fitness / fitness.sum())
    survivors = legal(mutate(population.take(parents), rng))
    return survivors if len(survivors) else population
