"""Mutation of whole populations (paper section 5.1); the examples show one program."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.programs.program import Population
from search.sketches.factors import Ints, prime_factors
from search.sketches.variables import Choice, Split

TILE_PROBABILITY = 0.85
# The probability to redraw a split instead of moving one of its factors.
REDRAW_PROBABILITY = 0.1


def mutate(population: Population, rng: np.random.Generator) -> Population:
    """Change one variable of every program: usually a split (see `move_factor`), sometimes a choice.

        parallel for i0 in 8:
          for i1 in 4: b[i] = a[i]
    ->
        parallel for i0 in 8:
          vectorized for i1 in 4: b[i] = a[i]        # the choice "vector" was 1, and is 4
    """
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
        columns = population.sketch.columns[split.key]
        values[rows, columns] = _mutate_split(values[rows, columns], split, rng)
    for number, choice in enumerate(choices):
        rows = np.flatnonzero(~tiled & (picked_choice == number))
        values[rows, population.sketch.columns[choice.key]] = choice.draw(len(rows), rng)
    return Population(population.sketch, values)


def _mutate_split(factors: Ints, split: Split, rng: np.random.Generator) -> Ints:
    """Mutate factors [programs, parts]: exact factors usually exchange a prime, and factors of partial tiles
    are redrawn.

        for i0 in 3:
          for i1 in 16: if 16 * i0 + i1 < 42: b[i] = a[i]
    ->
        for i0 in 6:
          for i1 in 7: b[i] = a[i]
    """
    redrawn = rng.random(len(factors)) < REDRAW_PROBABILITY
    redrawn |= factors.prod(axis=1) != split.extent
    changed = split.draw(len(factors), rng)
    changed[~redrawn] = move_factor(factors[~redrawn], split.extent, rng)
    return changed


def move_factor(factors: Ints, extent: int, rng: np.random.Generator) -> Ints:
    """Move one prime factor of every row [programs, parts] from one part to another.

        for i0 in 8:
          for i1 in 4: b[i] = a[i]
    ->
        for i0 in 4:
          for i1 in 8: b[i] = a[i]
    """
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


def _random_true(mask: NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Return a random column for every row, among those where the mask is true."""
    return np.asarray(np.argmax(rng.random(mask.shape) * mask, axis=1), dtype=np.int64)
