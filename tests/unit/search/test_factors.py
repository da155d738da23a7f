from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.sketches.factors import MAX_WASTE, Tail, covers, divisors, factorizations, prime_factors, tilings

LIMIT = 64


@given(st.integers(1, 5000))
def test_prime_factors_are_prime_and_multiply_to_the_number(number: int) -> None:
    primes = prime_factors(number)
    assert math.prod(primes) == number
    assert list(primes) == sorted(primes)
    assert all(divisors(prime) == (1, prime) for prime in primes)


@given(st.integers(1, 2000))
def test_divisors_are_complete(number: int) -> None:
    assert set(divisors(number)) == {d for d in range(1, number + 1) if number % d == 0}


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 64))
def test_factorizations_are_complete(extent: int, parts: int, max_last: int) -> None:
    expected = {
        factors
        for factors in itertools.product(divisors(extent), repeat=parts)
        if math.prod(factors) == extent and (factors[-1] <= max_last or parts == 1)
    }
    found = [tuple(row) for row in factorizations(extent, parts, max_last).tolist()]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_a_large_prime_stays_in_the_outer_parts() -> None:
    assert factorizations(127, 3, 64).tolist() == [[127, 1, 1], [1, 127, 1]]


def _tiles(factors: tuple[int, ...], extent: int) -> list[int]:
    """Return the elements of the extent that each run of the innermost loop covers."""
    *outer, last = factors
    starts = range(0, math.prod(outer) * last, last)
    return [max(0, min(last, extent - start)) for start in starts]


def _is_cover(factors: tuple[int, ...], extent: int, tail: Tail) -> bool:
    """Return whether all tiles are full, or all but the last one and `tail` allows that."""
    *full, last = _tiles(factors, extent)
    if sum((*full, last)) != extent or any(tile != factors[-1] for tile in full):
        return False
    if last == factors[-1]:
        return True
    # A single partial tile would only waste work.
    allowed = {Tail.NONE: False, Tail.ANY: True, Tail.INNER: all(f == 1 for f in factors[:-2])}
    return last > 0 and bool(full) and allowed[tail]


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from(Tail))
def test_factors_cover_an_extent_tile_by_tile(extent: int, factors: list[int], tail: Tail) -> None:
    assert covers(factors, extent, tail) is _is_cover(tuple(factors), extent, tail)


@pytest.mark.parametrize("extent", range(1, 25))
def test_every_small_tiling_is_classified_as_by_enumeration(extent: int) -> None:
    for factors in itertools.product(range(1, 7), repeat=3):
        for tail in Tail:
            assert covers(factors, extent, tail) is _is_cover(factors, extent, tail), (factors, tail)


@pytest.mark.parametrize("factors", [(0, 4), (-2, -2), (4, 0)])
def test_factors_are_positive(factors: tuple[int, ...]) -> None:
    assert not covers(factors, 4, Tail.ANY)


@given(st.integers(1, 1100), st.integers(1, 4), st.sampled_from(Tail))
def test_tilings_are_distinct_and_cover(extent: int, parts: int, tail: Tail) -> None:
    table = [tuple(row) for row in tilings(extent, parts, LIMIT, tail).tolist()]
    assert len(table) == len(set(table)) > 0
    for factors in table:
        assert len(factors) == parts
        assert covers(factors, extent, tail)
        assert parts == 1 or factors[-1] <= LIMIT


@given(st.integers(1, 1100), st.integers(1, 4), st.sampled_from(Tail))
def test_every_exact_factorization_is_a_tiling(extent: int, parts: int, tail: Tail) -> None:
    exact = [row for row in tilings(extent, parts, LIMIT, tail).tolist() if math.prod(row) == extent]
    assert exact == factorizations(extent, parts, LIMIT).tolist()


def _partial(extent: int, tail: Tail, parts: int = 4) -> set[int]:
    """Return the innermost factors of the tilings that end in a partial tile."""
    return {row[-1] for row in tilings(extent, parts, LIMIT, tail).tolist() if math.prod(row) != extent}


@given(st.integers(1, 1100))
def test_tilings_are_exact_by_default(extent: int) -> None:
    assert not _partial(extent, Tail.NONE)


@pytest.mark.parametrize("extent", [7, 13, 16, 56, 63, 81, 1000])
def test_rows_with_a_good_divisor_or_few_of_them_stay_exact(extent: int) -> None:
    assert not _partial(extent, Tail.ANY)


@pytest.mark.parametrize("extent", [19, 34, 49, 77, 127, 1009])
def test_awkward_rows_are_tiled_with_little_waste(extent: int) -> None:
    assert {3, 4, 5} <= _partial(extent, Tail.ANY)
    for row in tilings(extent, 4, LIMIT, Tail.ANY).tolist():
        assert math.prod(row) <= MAX_WASTE * extent


@pytest.mark.parametrize("extent", [7, 49, 64, 80, 1024])
def test_short_rows_and_full_vectors_are_not_peeled(extent: int) -> None:
    assert not _partial(extent, Tail.INNER)


@pytest.mark.parametrize("extent", [65, 100, 1000, 1009])
def test_long_rows_are_peeled_in_vectors(extent: int) -> None:
    assert _partial(extent, Tail.INNER) == {16, 32, 48, 64}


def test_peeled_tiles_leave_the_outer_levels_alone() -> None:
    peeled = [row for row in tilings(1009, 4, LIMIT, Tail.INNER).tolist() if math.prod(row) != 1009]
    assert peeled == [[1, 1, 64, 16], [1, 1, 32, 32], [1, 1, 22, 48], [1, 1, 16, 64]]
