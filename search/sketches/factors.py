"""Factorizations of extents, the raw material of tiling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Last factors that suit rows of a register tile, and those that fill vectors.
GOOD_ROWS = range(4, 17)
GOOD_VECTORS = (16, 32, 48, 64)
MAX_WASTE = 1.25


class Tail(StrEnum):
    """Where factors may multiply to more than the extent, so that the last tile is not a full one: nowhere;
    with any outer factors; only in the last two factors, which lets the compiler peel the rest off."""

    NONE = "none"
    ANY = "any"
    INNER = "inner"


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, number + 1) if number % d == 0)


@lru_cache(maxsize=4096)
def prime_factors(number: int) -> tuple[int, ...]:
    """With multiplicity, ascending: 12 -> (2, 2, 3)."""
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
    """All ordered ways to write `extent` as a product of `parts` factors whose last is at most `max_last`.

    An int64 array [ways, parts]; never empty, as everything may go into the first factor.
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
    """The exact factorizations, and those with a partial last tile where no divisor makes a good tile.

    An int64 array [ways, parts].
    """
    tables = [factorizations(extent, parts, max_last)]
    if parts > 1:
        tables += [_partial(extent, parts, last, tail) for last in _partial_tiles(extent, max_last, tail)]
    table = np.concatenate(tables)
    table.setflags(write=False)
    return table


def covers(factors: Sequence[int], extent: int, tail: Tail) -> bool:
    """Whether the factors are exact, or cover the extent with a partial last tile where `tail` allows it."""
    if min(factors) < 1:
        return False
    if math.prod(factors) == extent:
        return True
    *outer, last = factors
    if tail is Tail.NONE or not outer or last >= extent or math.prod(outer) != -(-extent // last):
        return False
    return tail is Tail.ANY or math.prod(outer[:-1]) == 1


def _partial_tiles(extent: int, max_last: int, tail: Tail) -> list[int]:
    """Last factors that don't divide an awkward extent; none where a good divisor exists."""
    if tail is Tail.ANY and extent > GOOD_ROWS.stop and not any(extent % rows == 0 for rows in GOOD_ROWS):
        limit = min(max_last, GOOD_ROWS.stop - 1)
        return [t for t in range(2, limit + 1) if extent % t and -(-extent // t) * t <= MAX_WASTE * extent]
    if tail is Tail.INNER and extent > max_last and extent % GOOD_VECTORS[0]:
        return [t for t in GOOD_VECTORS if t <= max_last]
    return []


def _partial(extent: int, parts: int, last: int, tail: Tail) -> Ints:
    count = -(-extent // last)
    if tail is Tail.INNER or parts == 2:
        outer = np.array([[1] * (parts - 2) + [count]], dtype=np.int64)
    else:
        outer = factorizations(count, parts - 1, count)
    return np.concatenate([outer, np.full((len(outer), 1), last, dtype=np.int64)], axis=1)
