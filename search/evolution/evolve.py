"""Evolutionary search over whole populations (paper section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from search.evolution.mutate import cross, mutate
from search.programs.annotate import legal, sample
from search.programs.nest import Floats
from search.programs.program import Population, Program, gather
from search.sketches.sketch import Sketch

DRAWS = 8

Predict = Callable[[Population], Floats]


@dataclass(frozen=True)
class EvolutionConfig:
    """Sizes of the search of one sketch; `seeds` is the largest share of measured programs at the start."""

    population: int = 1024
    generations: int = 8
    seeds: float = 0.2
    crossover: float = 0.05

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
    """Every distinct program met, best predicted seconds first.

    `measured` are the best programs known, best first; those of this sketch join the initial population.
    """
    population = _start(sketch, measured, rng, config)
    if len(population) == 0:
        return population, np.zeros(0)
    met = [population]
    scores = predict(population)
    met_scores = [scores]
    for _ in range(config.generations):
        population = _next_generation(population, scores, rng, config)
        scores = predict(population)
        met.append(population)
        met_scores.append(scores)
    return _ranked(sketch, met, met_scores)


def _start(
    sketch: Sketch, measured: Sequence[Program], rng: np.random.Generator, config: EvolutionConfig
) -> Population:
    drawn = _drawn(sketch, config.population, rng)
    seeds = [p for p in measured if p.sketch.key == sketch.key][: int(config.seeds * config.population)]
    if not seeds:
        return drawn
    return Population(sketch, np.concatenate([gather(seeds).values, drawn.values]))


def _drawn(sketch: Sketch, count: int, rng: np.random.Generator) -> Population:
    """Random programs; drawn again where none of a small number was valid."""
    for _ in range(DRAWS):
        drawn = sample(sketch, count, rng)
        if len(drawn):
            break
    return drawn


def _next_generation(
    population: Population, scores: Floats, rng: np.random.Generator, config: EvolutionConfig
) -> Population:
    # Roulette over predicted throughput: twice as fast is twice as likely to have children.
    fitness = 1.0 / scores
    parents = rng.choice(len(population), size=(2, config.population), p=fitness / fitness.sum())
    children = mutate(population.take(parents[0]), rng)
    crossed = cross(children, population.take(parents[1]), rng)
    swap = rng.random(config.population) < config.crossover
    values = np.where(swap[:, None], crossed.values, children.values)
    survivors = legal(Population(population.sketch, values))
    return survivors if len(survivors) else population


def _ranked(sketch: Sketch, met: Sequence[Population], scores: Sequence[Floats]) -> tuple[Population, Floats]:
    population = Population(sketch, np.concatenate([p.values for p in met]))
    rows = population.distinct_rows()
    flat = np.concatenate(scores)[rows]
    order = np.argsort(flat, kind="stable")
    return population.take(rows[order]), flat[order]
