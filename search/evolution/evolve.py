"""Evolutionary search over whole populations (paper section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from search.evolution.crossover import cross, node_groups
from search.evolution.mutate import mutate
from search.evolution.scored import Score, Scored, join
from search.programs.annotate import keep_valid, sample
from search.programs.program import Population, Program, gather
from search.sketches.sketch import Sketch

# How often to redraw a population without a valid program.
MAX_DRAWS = 8


@dataclass(frozen=True)
class EvolutionConfig:
    """Sizes of the evolution of one sketch.

    `measured_fraction` is the largest fraction of measured programs in the initial population. `crossover` is
    the fraction of a generation that combines two parents; the others mutate one.

    An evolution that continues an earlier one adds a generation and `fresh_fraction` of a population of
    random programs. In that generation, a program that is predicted to be twice as fast as another has
    2 ** `selection` times as many children.
    """

    population: int = 1024
    generations: int = 8
    measured_fraction: float = 0.2
    crossover: float = 0.2
    selection: float = 4.0
    fresh_fraction: float = 0.25

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 0:
            raise ValueError("evolution needs at least two programs and no negative generations")
        if not 0.0 <= self.crossover <= 1.0:
            raise ValueError(f"crossover must be a fraction from 0 to 1, not {self.crossover}")


def evolve(
    sketch: Sketch,
    score: Score,
    measured: Sequence[Program],
    rng: np.random.Generator,
    config: EvolutionConfig,
    known: Scored | None = None,
    rescore: Callable[[Scored], Scored] = lambda scored: scored,
) -> Scored:
    """Return every distinct program of all generations, predicted fastest first.

    `measured` are programs, best first; programs of this sketch join the initial population. `known` is what
    an earlier evolution of the sketch returned, or the first part of it. Then this evolution continues the
    earlier one by a generation. It scores only new programs; `rescore` predicts the known ones again.
    """
    limit = int(config.measured_fraction * config.population)
    of_sketch = [program for program in measured if program.sketch.key == sketch.key][:limit]
    best = [gather(of_sketch)] if of_sketch else []
    if known is not None and len(known):
        children = _next_generation(known, rng, config, config.selection)
        fresh = sample(sketch, round(config.fresh_fraction * config.population), rng)
        everything = _concatenate([known.population, *best, children, fresh])
        rows = everything.distinct_rows()
        new = everything.take(rows[rows >= len(known)])
        again = rescore(known)
        return join([again, score(new)] if len(new) else [again])
    generation = _score(_concatenate([*best, _drawn(sketch, rng, config)]), score)
    generations = [generation]
    for _ in range(config.generations if len(generation) else 0):
        generation = score(_next_generation(generation, rng, config))
        generations.append(generation)
    return join(generations)


def _concatenate(populations: Sequence[Population]) -> Population:
    return Population(populations[0].sketch, np.concatenate([each.values for each in populations]))


def _score(population: Population, score: Score) -> Scored:
    if len(population):
        return score(population)
    nothing = np.zeros(0)
    stages = {stage.node: nothing for stage in population.sketch.stages}
    return Scored(population, nothing, stages, np.zeros((0, 0), np.float32), nothing)


def _drawn(sketch: Sketch, rng: np.random.Generator, config: EvolutionConfig) -> Population:
    """Draw random programs; none if no valid one is found."""
    for _ in range(MAX_DRAWS):
        drawn = sample(sketch, config.population, rng)
        if len(drawn):
            break
    return drawn


def _next_generation(
    parents: Scored, rng: np.random.Generator, config: EvolutionConfig, selection: float = 1.0
) -> Population:
    """Return valid children; the parents themselves if no child is valid."""
    # Roulette over predicted throughput.
    share = (parents.seconds.min() / parents.seconds) ** selection
    share /= share.sum()
    # A sketch with a single group of nodes has nothing to combine.
    sketch = parents.population.sketch
    count = round(config.crossover * config.population) if len(node_groups(sketch)) > 1 else 0
    chosen = rng.choice(len(parents), size=config.population, p=share)
    children = mutate(parents.population.take(chosen[count:]), rng)
    if count:
        mates = rng.choice(len(parents), size=count, p=share)
        crossed = cross(parents.take(chosen[:count]), parents.take(mates))
        children = _concatenate([crossed, children])
    survivors = keep_valid(children)
    return survivors if len(survivors) else parents.population
