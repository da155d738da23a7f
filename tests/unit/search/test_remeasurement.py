from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.remeasurement import (
    MAX_MEASUREMENTS,
    NOISE,
    MeasuredProgram,
    remeasurement_count,
    select_for_remeasurement,
)

MEASURED = st.lists(
    st.tuples(st.floats(1e-6, 1.0) | st.just(math.inf), st.integers(1, MAX_MEASUREMENTS + 1)), max_size=20
)


@given(measured=MEASURED, count=st.integers(0, 8))
def test_only_programs_that_may_be_the_fastest_are_timed_again(
    measured: list[tuple[float, int]], count: int
) -> None:
    timed = [MeasuredProgram(number, seconds, times) for number, (seconds, times) in enumerate(measured)]
    chosen = [timed[number] for number in select_for_remeasurement(timed, count)]
    best_s = min((one.seconds for one in timed), default=math.inf)
    assert len(chosen) <= count
    assert all(one.times < MAX_MEASUREMENTS and one.seconds * (1 - NOISE) <= best_s for one in chosen)
    left = [
        one
        for one in timed
        if one not in chosen and one.times < MAX_MEASUREMENTS and math.isfinite(one.seconds)
    ]
    if len(chosen) < count:
        assert all(one.optimistic_s > best_s for one in left)


def test_the_fastest_program_is_remeasured_first() -> None:
    measured = [MeasuredProgram("a", 1.0), MeasuredProgram("b", 0.99), MeasuredProgram("c", 2.0)]
    assert select_for_remeasurement(measured, 3) == ["b", "a"]
    # A program with few measurements may still be faster than a well-measured one.
    measured = [MeasuredProgram("a", 1.0), MeasuredProgram("b", 0.99, MAX_MEASUREMENTS)]
    assert select_for_remeasurement(measured, 3) == ["a"]
    assert select_for_remeasurement([MeasuredProgram("b", 0.99, MAX_MEASUREMENTS)], 3) == []


def test_a_program_that_was_measured_on_a_slow_device_may_be_the_fastest() -> None:
    slow = MeasuredProgram("slow", 1.5, speed=0.6)
    assert select_for_remeasurement([MeasuredProgram("a", 1.0), slow], 3) == ["slow", "a"]
    assert select_for_remeasurement([MeasuredProgram("a", 1.0), MeasuredProgram("b", 1.5)], 3) == ["a"]


def test_without_a_success_nothing_is_timed_again() -> None:
    assert select_for_remeasurement([], 3) == []
    assert select_for_remeasurement([MeasuredProgram("a", math.inf)], 3) == []


def test_zero_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="at least once"):
        MeasuredProgram("a", 1.0, 0)


def test_the_last_batch_times_more_programs_again() -> None:
    rng = np.random.default_rng(0)
    early = sum(remeasurement_count(32, rng, is_last=False) for _ in range(200))
    late = sum(remeasurement_count(32, rng, is_last=True) for _ in range(200))
    assert 300 < early < 500
    assert 1400 < late < 1800


def test_remeasurement_finds_better_programs() -> None:
    """Programs take 1.00 to 1.30, and each measurement is off by 8%. If an eighth of the measurements repeat
    others, the chosen program is better, though fewer programs were tried."""
    assert statistics.fmean(_chosen(seed, again=4) for seed in range(60)) < statistics.fmean(
        _chosen(seed, again=0) for seed in range(60)
    )


def _chosen(seed: int, again: int) -> float:
    """Return the true seconds of the program that looks the fastest after 4 batches of 32 measurements,
    `again` of which repeat earlier ones."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(1.0, 1.3, 4 * 32)
    seen: dict[int, list[float]] = {}
    for batch in range(4):
        chosen = [batch * 32 + n for n in range(32 - again)]
        timed = [MeasuredProgram(n, statistics.median(secs), len(secs)) for n, secs in seen.items()]
        for number in [*chosen, *select_for_remeasurement(timed, again)]:
            seen.setdefault(number, []).append(truth[number] * rng.normal(1.0, 0.08))
    return float(truth[min(seen, key=lambda number: statistics.median(seen[number]))])
