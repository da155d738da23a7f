"""Mutation of whole populations (paper section 5.1); the examples show one program."""

from __future__ import annotations

from collections.abc import Sequence

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
    # Splits with as many parts mutate together.
    for parts in sorted({split.parts for split in splits}):
        rows = np.flatnonzero(tiled & np.array([split.parts == parts for split in splits])[picked_split])
        first = np.array([population.sketch.columns[split.key].start for split in splits])
        at = rows[:, None], first[picked_split[rows], None] + np.arange(parts)
        values[at] = _mutate_splits(values[at], splits, picked_split[rows], rng)
    for number, choice in enumerate(choices):
        rows = np.flatnonzero(~tiled & (picked_choice == number))
        values[rows, population.sketch.columns[choice.key]] = choice.draw(len(rows), rng)
    return Population(population.sketch, values)


def _mutate_splits(factors: Ints, splits: Sequence[Split], picked: Ints, rng: np.random.Generator) -> Ints:
    """Mutate factors [programs, parts], each of the picked one of `splits`: exact factors usually exchange a
    prime, and factors of partial tiles are redrawn.

        for i0 in 3:
          for i1 in 16: if 16 * i0 + i1 < 42: b[i] = a[i]
    ->
        for i0 in 6:
          for i1 in 7: b[i] = a[i]
    """
    extents = np.array([split.extent for split in splits])[picked]
    redrawn = rng.random(len(factors)) < REDRAW_PROBABILITY
    redrawn |= factors.prod(axis=1) != extents
    changed = move_factor(factors, draw_primes(extents, rng), rng)
    for number in np.unique(picked[redrawn]):
        rows = np.flatnonzero(redrawn & (picked == number))
        changed[rows] = splits[number].draw(len(rows), rng)
    return changed


def draw_primes(extents: Ints, rng: np.random.Generator) -> Ints:
    """Return a random prime factor of every extent [programs], each with its multiplicity; 1 for 1."""
    distinct, which = np.unique(extents, return_inverse=True)
    primes = [prime_factors(int(extent)) or (1,) for extent in distinct]
    table = np.ones((len(primes), max(map(len, primes), default=1)), dtype=np.int64)
    for row, found in zip(table, primes, strict=True):
        row[: len(found)] = found
    counts = np.array([len(found) for found in primes], dtype=np.int64)
    return np.asarray(table[which, rng.integers(counts[which])])


def move_factor(factors: Ints, primes: Ints, rng: np.random.Generator) -> Ints:
    """Move a prime factor, `primes` [programs], of every row [programs, parts] from one part to another, if
    there are several.

        for i0 in 8:
          for i1 in 4: b[i] = a[i]
    ->
        for i0 in 4:
          for i1 in 8: b[i] = a[i]
    """
    rows = np.arange(len(factors))
    source = _random_true(factors % primes[:, None] == 0, rng)
    other = np.ones(factors.shape, dtype=bool)
    other[rows, source] = False
    target = _random_true(other, rng)
    moved = factors.copy()
    moved[rows, source] //= primes
    moved[rows, target] *= primes
    return moved


def _random_true(mask: NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Return a random column for every row, among those where the mask is true."""
    return np.asarray(np.argmax(rng.random(mask.shape) * mask, axis=1), dtype=np.int64)
