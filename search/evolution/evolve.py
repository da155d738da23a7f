"""Evolutionary search over whole populations (paper section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from search.evolution.crossover import cross, node_groups
from search.evolution.mutate import mutate
from search.evolution.scored import Score, Scored, join, merge
from search.programs.annotate import canonical, draw, sample
from search.programs.program import Population, Program, gather
from search.programs.validity import valid
from search.sketches.sketch import Sketch

# How often to redraw a population without a valid program.
MAX_DRAWS = 8


@dataclass(frozen=True)
class EvolutionConfig:
    """Sizes of the evolution of a task's sketches.

    `population` is the number of children for each sketch, on average. `measured_fraction` is the largest
    fraction of measured programs in the initial population. `crossover` is the fraction of a generation that
    combines two parents; the others mutate one.

    A program that is predicted to be twice as fast as another has 2 ** `selection` times as many children, of
    its own sketch or of another one. A sketch with fewer than `min_children` has none, because a generation
    of few takes nearly as long as one of many. An evolution that continues an earlier one adds
    `fresh_fraction` of random programs.
    """

    population: int = 1024
    generations: int = 4
    measured_fraction: float = 0.2
    crossover: float = 0.2
    selection: float = 4.0
    fresh_fraction: float = 0.25
    min_children: int = 64

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 0:
            raise ValueError("evolution needs at least two programs and no negative generations")
        if not 0.0 <= self.crossover <= 1.0:
            raise ValueError(f"crossover must be a fraction from 0 to 1, not {self.crossover}")


def evolve(
    sketches: Sequence[Sketch],
    score: Score,
    measured: Sequence[Program],
    rng: np.random.Generator,
    config: EvolutionConfig,
) -> list[Scored]:
    """Return every distinct program of all generations, for each sketch, predicted fastest first.

    `measured` are programs, best first, which join the initial populations of their sketches.
    """
    known = []
    for sketch in sketches:
        first = _concatenate([*_best_of(sketch, measured, config), _drawn(sketch, rng, config)])
        known.append(join([_score(first, score)]))
    without_random = replace(config, fresh_fraction=0.0)
    for _ in range(config.generations):
        known = add_generation(known, score, measured, rng, without_random)
    return known


def add_generation(
    known: Sequence[Scored],
    score: Score,
    measured: Sequence[Program],
    rng: np.random.Generator,
    config: EvolutionConfig,
) -> list[Scored]:
    """Add children to the known programs of each sketch, and random programs. Only new programs are scored.

    `measured` programs (best first) of the sketches that have children join them.
    """
    if not any(map(len, known)):
        return list(known)
    shares = share_children(known, config.population * len(known), config)
    return [
        _grown(scored, score, measured, rng, replace(config, population=share)) if share else scored
        for scored, share in zip(known, shares, strict=True)
    ]


def _grown(
    known: Scored,
    score: Score,
    measured: Sequence[Program],
    rng: np.random.Generator,
    config: EvolutionConfig,
) -> Scored:
    """Return a sketch's known programs and their children."""
    sketch = known.population.sketch
    # Operations on few programs take nearly as long as on many, so both kinds are checked together.
    fresh = draw(sketch, round(config.fresh_fraction * config.population), rng)
    drawn = canonical(_concatenate([_children(known, rng, config), fresh]))
    everything = _concatenate([known.population, *_best_of(sketch, measured, config), drawn])
    rows = everything.distinct_rows()
    new = everything.take(rows[rows >= len(known)])
    new = new.take(np.flatnonzero(valid(new)))
    return merge(known, score(new)) if len(new) else known


def share_children(known: Sequence[Scored], total: int, config: EvolutionConfig) -> list[int]:
    """Divide a generation's children among sketches, whose known programs are given, by the predicted
    throughput of all their programs. At least one sketch has known programs.
    """
    fastest_s = min((scored.seconds.min(initial=np.inf) for scored in known), default=np.inf)
    weights = np.array([((fastest_s / scored.seconds) ** config.selection).sum() for scored in known])
    order = np.argsort(-weights, kind="stable")
    weights[order[max(total // config.min_children, 1) :]] = 0.0
    shares = np.round(total * weights / weights.sum()).astype(int)
    is_few = shares < config.min_children
    is_few[order[0]] = False
    return np.where(is_few, 0, shares).tolist()


def _best_of(sketch: Sketch, measured: Sequence[Program], config: EvolutionConfig) -> list[Population]:
    """Return the measured programs that join a population, if there are any."""
    limit = int(config.measured_fraction * config.population)
    of_sketch = [program for program in measured if program.sketch.key == sketch.key][:limit]
    return [gather(of_sketch)] if of_sketch else []


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


def _children(parents: Scored, rng: np.random.Generator, config: EvolutionConfig) -> Population:
    """Return mutated and crossed programs. Some may be invalid."""
    # Roulette over predicted throughput.
    share = (parents.seconds.min() / parents.seconds) ** config.selection
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
    return children
