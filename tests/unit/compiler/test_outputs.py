"""Two builds of a model agree when their outputs differ by rounding errors only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.measuring.outputs import changes_likewise, compare_outputs, nudged, own_changes

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((1, 1000), dtype=np.float32)


def shaken(values: NDArray[Any], by: float) -> NDArray[Any]:
    noise = np.random.default_rng(1).standard_normal(values.shape)
    return (values * (1 + by * noise)).astype(values.dtype)


def softmax(values: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(values)
    return np.asarray(powers / powers.sum())


@pytest.mark.parametrize("by", [0.0, 1e-6, 1e-4, 5e-3])
def test_rounding_errors_are_allowed(by: float) -> None:
    assert compare_outputs([LOGITS], [shaken(LOGITS, by)]) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        LOGITS[:, ::-1],
        np.zeros_like(LOGITS),
        LOGITS * np.float32(1.05),
        LOGITS + np.float32(0.05),
        np.where(np.arange(1000) < 980, LOGITS, np.float32(0)),
        np.full_like(LOGITS, np.nan),
    ],
    ids=["permuted", "zeros", "scaled", "shifted", "undone in part", "no numbers"],
)
def test_larger_errors_are_not_allowed(wrong: NDArray[Any]) -> None:
    assert compare_outputs([LOGITS], [np.ascontiguousarray(wrong)]).startswith("output 0: ")


def test_values_that_hardly_vary_are_compared_by_their_spread() -> None:
    flat = softmax(LOGITS / 50)
    assert compare_outputs([flat], [shaken(flat, 1e-6)]) == ""
    assert "are off by" in compare_outputs([flat], [np.ascontiguousarray(flat[:, ::-1])])


def test_a_single_value_is_compared_by_its_size() -> None:
    one = np.array([3.0], np.float32)
    assert compare_outputs([one], [one * np.float32(1.001)]) == ""
    assert compare_outputs([one], [one * np.float32(1.1)]) != ""


@pytest.mark.parametrize(("dtype", "allowed", "forbidden"), [("float16", 0.02, 0.5), ("float64", 1e-3, 0.05)])
def test_every_float_type_has_a_tolerance_of_its_own(dtype: str, allowed: float, forbidden: float) -> None:
    values = LOGITS.astype(dtype)
    assert compare_outputs([values], [shaken(values, allowed)]) == ""
    assert compare_outputs([values], [shaken(values, forbidden)]) != ""


def test_a_few_integers_may_differ() -> None:
    classes = RNG.integers(0, 20, size=(1, 64, 64))
    few, many = classes.copy(), classes.copy()
    few[0, 0, :30] += 1
    many[0, :2] += 1
    assert compare_outputs([classes], [few]) == ""
    assert compare_outputs([classes], [many]) == "output 0: 128 of 4096 values differ"


def test_nan_must_be_in_the_same_places() -> None:
    values = LOGITS.copy()
    values[0, :100] = np.nan
    assert compare_outputs([values], [shaken(values, 1e-5)]) == ""
    assert compare_outputs([values], [LOGITS]) == "output 0: 100 of 1000 values differ"
    assert compare_outputs([np.full(3, np.nan)], [np.full(3, np.nan)]) == ""


def test_all_outputs_are_compared_with_their_shapes_and_types() -> None:
    assert compare_outputs([LOGITS, LOGITS], [LOGITS, LOGITS + 1]).startswith("output 1: ")
    assert compare_outputs([LOGITS], [LOGITS, LOGITS]) == "there are 2 outputs instead of 1"
    assert compare_outputs([LOGITS], [LOGITS.reshape(1000)]) == (
        "output 0: it is float32 (1000,) instead of float32 (1, 1000)"
    )
    assert "float64" in compare_outputs([LOGITS], [LOGITS.astype(np.float64)])


def test_wide_outputs_of_narrow_values_are_as_precise_as_these() -> None:
    rounded = shaken(LOGITS, 2e-2)
    assert "are off by" in compare_outputs([LOGITS], [rounded])
    assert compare_outputs([LOGITS], [rounded], "bfloat16") == ""


def test_bytes_that_stand_for_floats_may_be_off_by_a_step_anywhere() -> None:
    stored = np.random.default_rng(0).normal(128, 30, 1000).clip(0, 254).astype(np.uint8)
    stepped = stored + (np.arange(1000) % 5 == 0).astype(np.uint8)
    assert compare_outputs([stored], [stepped]) == "output 0: 200 of 1000 values differ"
    assert compare_outputs([stored], [stepped], "quantized") == ""
    assert "are off by" in compare_outputs([stored], [stored[::-1].copy()], "quantized")


def test_selected_elements_are_compared_in_any_order() -> None:
    rows = np.arange(60).reshape(20, 3)
    other = rows[::-1].copy()
    assert compare_outputs([rows], [other]) != ""
    assert compare_outputs([rows], [other], padded_axes=[0]) == ""
    other[:3] = -1
    assert compare_outputs([rows], [other], padded_axes=[0]) != ""


def test_a_nudge_changes_floats_by_a_thousandth() -> None:
    floats = np.array([1.0, -3.0, 0.0, np.inf, np.nan, np.finfo(np.float32).max], np.float32)
    counts = np.arange(4)
    moved = nudged(floats)
    assert nudged(counts) is counts
    assert moved.dtype == np.float32
    assert (moved[:2] != floats[:2]).all()
    np.testing.assert_allclose(moved[:5], floats[:5], rtol=1.1e-3)
    np.testing.assert_array_equal(moved, nudged(floats))


@pytest.mark.parametrize(
    ("found", "changed_by", "likewise"),
    [
        (shaken(LOGITS, 0.5), 0.5, True),
        (shaken(LOGITS, 0.5), 0.01, False),
        (LOGITS[:, ::-1], 0.6, False),
        (np.full_like(LOGITS, np.nan), 0.6, False),
        (shaken(LOGITS, 0.5), np.inf, False),
        (LOGITS[:, :10], 0.6, False),
    ],
    ids=["likewise", "more", "unrelated", "nan", "infinite", "another shape"],
)
def test_outputs_may_differ_as_much_as_they_change_by_themselves(
    found: NDArray[Any], changed_by: float, likewise: bool
) -> None:
    noise = np.random.default_rng(2).standard_normal(LOGITS.shape)
    after = (LOGITS * (1 + changed_by * noise)).astype(np.float32)
    assert changes_likewise([LOGITS], [found], own_changes([LOGITS], [after])) is likewise


def test_a_constant_or_empty_output_has_no_changes_of_its_own() -> None:
    constant, empty = np.ones(20, np.float32), np.zeros((0, 3), np.float32)
    assert own_changes([constant, empty], [constant, empty]) == [0.0, 0.0]
    assert changes_likewise([constant, empty], [constant, empty], [0.0, 0.0])
    assert not changes_likewise([constant], [constant + 1], [0.5])
