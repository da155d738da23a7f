"""Compare the outputs of two builds of one model, with a tolerance for rounding errors.

Every kernel was compared with a reference before. Comparing whole models finds errors between kernels: a
wrong constant, a wrong layout, a buffer that is used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.importing.spec import NARROW

# Tolerances by type. "quantized" values are computed in bytes, so a small rounding error can change them
# by a whole quantization step.
MODEL_TOLERANCE = {"float32": 1e-3, "float64": 1e-6, "float16": 2e-2, "bfloat16": 5e-2, "quantized": 2e-2}
QUANTIZED = ("int8", "uint8", "int16", "uint16", *NARROW)

# Rounding errors accumulate through a network, and become steps at quantizations and maxima. So the root mean
# square of the error may be (SPREAD_FACTOR * spread + SIZE_FACTOR * size) times a kernel's relative
# tolerance. Spread is the standard deviation of the expected values, size their root mean square.
SPREAD_FACTOR, SIZE_FACTOR = 10.0, 0.1
MIN_TOLERANCE = 1e-3
# The fraction of integers that may differ, and of floats that may be finite in only one output.
MAX_DIFFERENT = 0.01
# Fewer values have no meaningful standard deviation, so their size replaces it.
MIN_VALUES = 16

# In some quantized networks, a rounding error becomes steps that grow from layer to layer: the outputs of an
# EfficientNet with random weights change by 0.6 of their spread. Outputs may differ OWN_CHANGES times as much
# as they change if each input changes by NUDGE of itself. A steady network changes far less than is allowed
# anyway. Unrelated outputs differ by 1.4 of the spread.
NUDGE, OWN_CHANGES = 1e-3, 1.5
CHANGES_LIKEWISE = "outputs differ as much as they change with inputs that differ by a thousandth"

# An element is far off if its error exceeds this many times the tolerance of its type.
FAR_FACTOR = 10.0

Arrays = Sequence[NDArray[Any]]


def compare_outputs(
    expected: Arrays,
    actual: Arrays,
    computed_in: str = "float64",
    padded_axes: Sequence[int | None] = (),
) -> str:
    """Describe the first output that differs; "" if all outputs agree.

    `computed_in` is the coarsest type of intermediate values (`OnnxFile.computed_in`). An output of wider
    floats is no more precise, and bytes that stand for floats may be off as much as floats. Rounding errors
    change the order of selected elements, so outputs with one of the `padded_axes` are compared regardless of
    order.
    """
    if len(expected) != len(actual):
        return f"there are {len(actual)} outputs instead of {len(expected)}"
    axes = padded_axes or [None] * len(expected)
    for number, (wanted, found, axis) in enumerate(zip(expected, actual, axes, strict=True)):
        if axis is not None and wanted.shape == found.shape:
            wanted, found = np.sort(wanted, axis), np.sort(found, axis)
        if wrong := _compare(wanted, found, computed_in):
            return f"output {number}: {wrong}"
    return ""


def nudged(array: NDArray[Any]) -> NDArray[Any]:
    """Return an input whose floats differ by NUDGE of themselves, up or down."""
    if array.dtype.kind != "f":
        return array
    signs = np.random.default_rng(0).choice((-1.0, 1.0), array.shape)
    with np.errstate(all="ignore"):
        return (array * (1 + NUDGE * signs)).astype(array.dtype)


def own_changes(expected: Arrays, after_nudge: Arrays) -> list[float]:
    """Return how much each expected output changes with `nudged` inputs, relative to its spread."""
    return [_relative_difference(moved, wanted) for wanted, moved in zip(expected, after_nudge, strict=True)]


def changes_likewise(expected: Arrays, actual: Arrays, changes: Sequence[float]) -> bool:
    """Return whether a quantized model's outputs differ about as much as they change by themselves; see
    `own_changes`."""
    return all(
        wanted.shape == found.shape and _relative_difference(found, wanted) <= OWN_CHANGES * change < np.inf
        for wanted, found, change in zip(expected, actual, changes, strict=True)
    )


def _relative_difference(one: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Return the root mean square of the difference relative to the spread; infinity unless all is finite."""
    a, b = one.astype(np.float64), wanted.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.inf
    if (a == b).all():
        return 0.0
    spread = _spread(b)
    return _root_mean_square(a - b) / spread if spread else np.inf


def _compare(wanted: NDArray[Any], found: NDArray[Any], computed_in: str) -> str:
    if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
        return f"it is {found.dtype} {found.shape} instead of {wanted.dtype} {wanted.shape}"
    stands_for_floats = computed_in == "quantized" and str(wanted.dtype) in QUANTIZED
    tolerance = 0.0 if stands_for_floats else MODEL_TOLERANCE.get(str(wanted.dtype))
    if tolerance is None:
        unordered = (wanted != wanted) & (found != found)
        return _count_different((wanted != found) & ~unordered)
    # Random inputs may produce NaN and infinity, but at the same positions of both outputs.
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if wrong := _count_different(np.isfinite(a) != np.isfinite(b)):
        return wrong
    numbers = np.isfinite(a) & np.isfinite(b)
    a, b = a[numbers], b[numbers]
    if b.size == 0:
        return ""
    size = _root_mean_square(b)
    spread = _spread(b)
    error = _root_mean_square(a - b)
    tolerance = max(tolerance, MODEL_TOLERANCE[computed_in], MIN_TOLERANCE)
    allowed = tolerance * (SPREAD_FACTOR * spread + SIZE_FACTOR * size)
    return f"its values are off by {error:.3g}, {allowed:.3g} is allowed" if error > allowed else ""


def far_off(expected: NDArray[Any], actual: NDArray[Any], computed_in: str) -> str:
    """Describe values that are far off, though too few for `compare_outputs` to notice; "" if none are."""
    tolerance = MODEL_TOLERANCE.get(str(expected.dtype))
    if expected.shape != actual.shape or (tolerance is None and computed_in == "quantized"):
        return ""
    a, b = (one.astype(np.float64) if tolerance is not None else one for one in (actual, expected))
    equal = (a == b) | ((a != a) & (b != b))
    if equal.all():
        return ""
    if tolerance is None:
        return f"{np.count_nonzero(~equal)} of {b.size} values differ"
    numbers = np.isfinite(a) & np.isfinite(b)
    known = b[numbers]
    spread = _spread(known) if known.size else 0.0
    allowed = FAR_FACTOR * max(tolerance, MODEL_TOLERANCE[computed_in], MIN_TOLERANCE)
    with np.errstate(invalid="ignore"):
        far = ~equal & ~(numbers & (np.abs(a - b) <= allowed * (np.abs(b) + spread)))
    return f"{np.count_nonzero(far)} of {b.size} values are far off" if far.any() else ""


def _count_different(different: NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(different))
    return f"{count} of {different.size} values differ" if count > MAX_DIFFERENT * different.size else ""


def _spread(values: NDArray[np.float64]) -> float:
    """Return the standard deviation; the size of a few values."""
    return _root_mean_square(values - np.mean(values) if values.size >= MIN_VALUES else values)


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
