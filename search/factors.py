"""Exact factorizations, the raw material of tiling."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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
