"""The difference between an output and the reference."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.importing.spec import TensorSpec
from compiler.verifying.differences import difference
from core.inference import Comparison, OutputDifference

SPEC = TensorSpec("y", (2, 2), "float32")


@pytest.mark.parametrize(
    ("wanted", "found", "differing", "largest", "db"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], 0, 0.0, None),
        ([[1, 2], [3, np.nan]], [[1, 2], [3, np.nan]], 0, 0.0, None),
        ([[3, 0], [0, 4]], [[3, 0], [0.5, 4]], 1, 0.5, pytest.approx(20.0)),
        ([[1, 2], [3, np.inf]], [[1, 2], [3, 4]], 1, None, -1000.0),
        ([[1, 2], [3, 4]], [[1, 2], [3, np.nan]], 1, None, -1000.0),
        ([[0, 0], [0, 0]], [[0, 0], [0, 1]], 1, 1.0, -1000.0),
    ],
)
def test_infinities_and_nan_are_compared(
    wanted: list[list[float]],
    found: list[list[float]],
    differing: int,
    largest: float | None,
    db: float | None,
) -> None:
    own = difference(SPEC, np.array(wanted, np.float32), np.array(found, np.float32))
    assert (own.differing, own.largest, own.db) == (differing, largest, db)
    assert own.elements == 4


@pytest.mark.parametrize(
    ("wanted", "found", "largest", "db"),
    [(1e308, -1e308, None, -1000.0), (1e200, 2e200, 1e200, -1000.0), (1e-200, 2e-200, 1e-200, -1000.0)],
)
def test_doubles_with_infinite_or_zero_squares_are_compared(
    wanted: float, found: float, largest: float | None, db: float
) -> None:
    own = difference(SPEC, np.array([wanted]), np.array([found]))
    assert (own.differing, own.largest, own.db) == (1, largest, db)
    assert "-1000.0 dB signal to noise" in Comparison((own,)).text


@pytest.mark.parametrize(
    ("dtype", "wanted", "found", "largest"),
    [
        ("int64", 2**63 - 1, 2**63 - 2, 1.0),
        ("int64", -(2**63), 2**63 - 1, float(2**64 - 1)),
        ("uint64", 2**64 - 1, 2**64 - 2, 1.0),
        ("int8", -128, 127, 255.0),
        ("bool", True, False, 1.0),
    ],
)
def test_integers_beyond_doubles_are_compared_exactly(
    dtype: str, wanted: int, found: int, largest: float
) -> None:
    spec = TensorSpec("y", (2,), dtype)
    own = difference(spec, np.array([wanted, 0], dtype), np.array([found, 0], dtype))
    assert (own.differing, own.largest) == (1, largest)


def test_shapes_and_selected_rows_are_compared() -> None:
    found = np.array([[1.0, 2.0], [-1.0, -1.0]], np.float32)
    whole = difference(SPEC, found[:1], found)
    assert (whole.differing, whole.largest) == (2, None)
    padded = difference(TensorSpec("y", (2, 2), "float32", padded_axis=0), found[:1], found)
    assert padded.differing == 0
    empty = difference(SPEC, np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32))
    assert (empty.elements, empty.differing) == (0, 0)


def test_a_comparison_names_the_output_that_differs_most() -> None:
    near, far = OutputDifference("near", 4, 1, 1e-6, 100.0), OutputDifference("far", 4, 1, None, -3.0)
    said = Comparison((near, far)).text
    assert said.endswith("by NaN or infinite (-3.0 dB signal to noise, output 'far')")
    assert Comparison(note="it is TFLite").text == "the outputs were not compared: it is TFLite"
    assert Comparison((OutputDifference("y", 4, 0, 0.0, None),)).text.startswith("the outputs equal")
    with pytest.raises(ValueError, match="must be finite"):
        OutputDifference("y", 4, 1, float("nan"), 1.0)
    with pytest.raises(ValueError, match="elements of y differ"):
        OutputDifference("y", 4, 1, 1.0, None)
