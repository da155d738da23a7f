"""Small changes to programs, and mixtures of two, over whole populations (paper section 5.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.programs.program import Population
from search.sketches.factors import Ints, prime_factors
from search.sketches.variables import Choice, Split

TILE_PROBABILITY = 0.85
# How often a split is drawn anew instead of moving one of its factors.
REDRAW_PROBABILITY = 0.1


def mutate(population: Population, rng: np.random.Generator) -> Population:
    """Changes one variable of every program: mostly a split, now and then a choice."""
    splits = [v for v in population.sketch.variables if isinstance(v, Split)]
    choices = [v for v in population.sketch.variables if isinstance(v, Choice)]
    values = population.values.copy()
    size = len(population)
    tiled = rng.random(size) < (TILE_PROBABILITY if choices else 1.0)
    if not splits:
        tiled[:] = False
    picked_split = rng.integers(max(len(splits), 1), size=size)
    picked_choice = rng.integers(max(len(choices), 1), size=size)
    for number, split in enumerate(splits):
        rows = np.flatnonzero(tiled & (picked_split == number))
        where = population.sketch.columns[split.node, split.axis]
        values[rows, where] = _mutate_split(values[rows, where], split, rng)
    for number, choice in enumerate(choices):
        rows = np.flatnonzero(~tiled & (picked_choice == number))
        where = population.sketch.columns[choice.node, choice.kind]
        values[rows, where] = rng.integers(len(choice.options), size=(len(rows), 1))
    return Population(population.sketch, values)


def _mutate_split(factors: Ints, split: Split, rng: np.random.Generator) -> Ints:
    """[programs, parts]: exact factors mostly exchange a prime; partial tiles are always drawn anew."""
    redrawn = rng.random(len(factors)) < REDRAW_PROBABILITY
    redrawn |= factors.prod(axis=1) != split.extent
    table = split.table
    changed = table[rng.integers(len(table), size=len(factors))]
    changed[~redrawn] = move_factor(factors[~redrawn], split.extent, rng)
    return changed


def move_factor(factors: Ints, extent: int, rng: np.random.Generator) -> Ints:
    """[programs, parts]: one prime factor of every row moves from one part to another."""
    if len(factors) == 0 or extent == 1 or factors.shape[1] == 1:
        return factors
    rows = np.arange(len(factors))
    prime = np.array(prime_factors(extent))[rng.integers(len(prime_factors(extent)), size=len(factors))]
    source = _random_true(factors % prime[:, None] == 0, rng)
    other = np.ones(factors.shape, dtype=bool)
    other[rows, source] = False
    target = _random_true(other, rng)
    moved = factors.copy()
    moved[rows, source] //= prime
    moved[rows, target] *= prime
    return moved


def cross(first: Population, second: Population, rng: np.random.Generator) -> Population:
    """Node-wise crossover: every node's variables come together from one of the two parents."""
    sketch = first.sketch
    values = first.values.copy()
    for node in dict.fromkeys(variable.node for variable in sketch.variables):
        from_second = rng.random(len(first)) < 0.5
        for (owner, _), where in sketch.columns.items():
            if owner == node:
                values[from_second, where] = second.values[from_second, where]
    return Population(sketch, values)


def _random_true(mask: NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """One random column per row among those where the mask is true."""
    return np.asarray(np.argmax(rng.random(mask.shape) * mask, axis=1), dtype=np.int64)
