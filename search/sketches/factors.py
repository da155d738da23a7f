"""Factorizations of extents into tile sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Good innermost factors for rows of a register tile, and for vectors. With 16 registers, tiles of 7, 11 or 13
# rows are one vector wide, and load more than they multiply.
GOOD_ROWS = (4, 5, 6, 9)
MAX_ROWS = 16
GOOD_VECTORS = (16, 32, 48, 64)
# The most that partial tiles may cover, relative to the extent.
MAX_WASTE = 1.25


class Tail(StrEnum):
    """Whether factors may multiply to more than the extent, so that the last tile is partial.

    `ANY`: with any outer factors. `INNER`: only if all but the last two factors are 1, so that the compiler
    can peel the partial tile.
    """

    NONE = "none"
    ANY = "any"
    INNER = "inner"


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, number + 1) if number % d == 0)


@lru_cache(maxsize=4096)
def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors with multiplicity, ascending: 12 -> (2, 2, 3)."""
    found = []
    prime = 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return tuple(found)


@lru_cache(maxsize=4096)
def factorizations(extent: int, parts: int, max_last: int) -> Ints:
    """Return all ordered ways to write `extent` as a product of `parts` factors, the last at most `max_last`.

    The result [ways, parts] is never empty, because the first factor may be the whole extent.
    """
    rows: list[tuple[int, ...]] = [(d,) for d in divisors(extent) if d <= max_last]
    for _ in range(parts - 2):
        rows = [(d, *row) for row in rows for d in divisors(extent // math.prod(row))]
    whole = [(extent // math.prod(row), *row) for row in rows] if parts > 1 else [(extent,)]
    table = np.array(whole, dtype=np.int64)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=4096)
def tilings(extent: int, parts: int, max_last: int, tail: Tail) -> Ints:
    """Return [ways, parts]: exact factorizations, and partial last tiles if no divisor makes a good tile."""
    tables = [factorizations(extent, parts, max_last)]
    if parts > 1:
        for last in _partial_tiles(extent, max_last, tail):
            count = -(-extent // last)
            if tail is Tail.INNER or parts == 2:
                outer = np.array([[1] * (parts - 2) + [count]], dtype=np.int64)
            else:
                outer = factorizations(count, parts - 1, count)
            tables.append(np.insert(outer, parts - 1, last, axis=1))
    table = np.concatenate(tables)
    table.setflags(write=False)
    return table


def covers(factors: Sequence[int], extent: int, tail: Tail) -> bool:
    """Return whether the factors multiply to the extent, or to more if `tail` allows a partial tile."""
    if min(factors) < 1:
        return False
    if math.prod(factors) == extent:
        return True
    *outer, last = factors
    if tail is Tail.NONE or not outer or last >= extent or math.prod(outer) != -(-extent // last):
        return False
    return tail is Tail.ANY or math.prod(outer[:-1]) == 1


def allows_partial_rows(extent: int) -> bool:
    """Return whether tiles of rows may be partial because no divisor of the extent makes a good tile."""
    return extent > MAX_ROWS and not any(extent % rows == 0 for rows in GOOD_ROWS)


def _partial_tiles(extent: int, max_last: int, tail: Tail) -> list[int]:
    """Return the last factors to try that don't divide the extent; none if a good divisor exists."""
    if tail is Tail.ANY and allows_partial_rows(extent):
        limit = min(max_last, MAX_ROWS)
        return [t for t in range(2, limit + 1) if extent % t and -(-extent // t) * t <= MAX_WASTE * extent]
    if tail is Tail.INNER and extent > max_last and extent % GOOD_VECTORS[0]:
        return [t for t in GOOD_VECTORS if t <= max_last]
    return []
