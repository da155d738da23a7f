"""Deviations agree with numpy's allclose if a network doesn't amplify rounding errors."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.timing.contestants import Arrays
from benchmarks.timing.deviation import ABSOLUTE, RELATIVE, Deviation, nudged, random_inputs
from benchmarks.timing.deviation import deviation as deviation_with_moved


def deviation(actual: Arrays, expected: Arrays) -> Deviation:
    """Return the deviation of outputs that don't depend on nudged inputs."""
    return deviation_with_moved(actual, expected, expected)


def test_equal_outputs_do_not_deviate() -> None:
    found = deviation([np.ones(3)], [np.ones(3)])
    assert (found.of_allowed, found.absolute, found.relative) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("factor", [0.9, 1.1])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e3])
def test_a_deviation_of_one_is_the_limit_of_allclose(size: float, factor: float) -> None:
    theirs = np.array([size, 5.0])
    ours = theirs + np.array([factor * (ABSOLUTE + RELATIVE * size), 0.0])
    assert (deviation([ours], [theirs]).of_allowed <= 1) is (factor < 1)
    assert np.allclose(ours, theirs, rtol=RELATIVE, atol=ABSOLUTE) is (factor < 1)


def test_the_worst_output_counts_and_signs_do_not() -> None:
    found = deviation([np.zeros(2), np.array([-8.0])], [np.zeros(2), np.array([-10.0])])
    assert found.absolute == pytest.approx(2.0)
    assert found.relative == pytest.approx(0.2)


def test_values_near_zero_do_not_inflate_the_relative_deviation() -> None:
    assert deviation([np.array([1e-9])], [np.array([0.0])]).relative == pytest.approx(1e-8)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.array([np.nan]), np.array([1.0])),
        (np.array([1.0]), np.array([np.inf])),
        (np.ones((1, 2)), np.ones(2)),
    ],
)
def test_incomparable_outputs_are_an_error(ours: np.ndarray, theirs: np.ndarray) -> None:
    with pytest.raises(ValueError, match="output"):
        deviation([ours], [theirs])
    with pytest.raises(ValueError, match="zip"):
        deviation([], [theirs])


def test_inputs_are_seeded_and_integers_are_in_range() -> None:
    specs = [((2, 3), "float32"), ((100,), "int64")]
    first, again, other = (random_inputs(specs, seed) for seed in (1, 1, 2))
    assert [array.dtype for array in first] == [np.float32, np.int64]
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    assert set(first[1]) == {0, 1}


def test_a_network_that_amplifies_roundings_may_differ_more() -> None:
    """The reference's outputs move by 0.03, ours differ by 0.08: EfficientNet-B0 with random weights."""
    theirs = np.array([178.0, 0.0])
    ours, moved = theirs + np.array([0.0, 0.08]), theirs + np.array([0.03, 0.0])
    assert deviation([ours], [theirs]).of_allowed > 1
    assert deviation_with_moved([ours], [theirs], [moved]).of_allowed < 1
    assert deviation_with_moved([ours + 1.0], [theirs], [moved]).of_allowed > 1


def test_floats_are_nudged_by_a_rounding_and_integers_stay() -> None:
    floats, integers = random_inputs([((1000,), "float32"), ((10,), "int64")], 0)
    moved, same = nudged([floats, integers])
    assert np.array_equal(same, integers)
    assert moved.dtype == np.float32
    assert np.mean(moved != floats) > 0.5
    assert np.allclose(moved, floats, rtol=3e-7, atol=0)
