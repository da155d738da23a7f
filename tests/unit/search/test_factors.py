from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from search.factors import divisors, factorizations, prime_factors


@given(st.integers(1, 5000))
def test_prime_factors_are_prime_and_multiply_to_the_number(number: int) -> None:
    primes = prime_factors(number)
    assert math.prod(primes) == number
    assert list(primes) == sorted(primes)
    assert all(divisors(prime) == (1, prime) for prime in primes)


@given(st.integers(1, 2000))
def test_divisors_are_all_that_divide(number: int) -> None:
    assert set(divisors(number)) == {d for d in range(1, number + 1) if number % d == 0}


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 64))
def test_factorizations_are_exactly_those_that_exist(extent: int, parts: int, max_last: int) -> None:
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
