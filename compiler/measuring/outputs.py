"""Whether two builds of one model compute the same, as far as roundings allow.

Every kernel was held to a reference of its own. Here all of them together are: what a wrong constant, a wrong
layout or a buffer used twice does to a model is no matter of roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.measuring.operands import RELATIVE_TOLERANCE

# Through a network roundings add up, and where it is quantized or picks the largest of several values they
# become steps. So values may be off by so many times a kernel's tolerance of what they vary, and by this part
# of it of what they are.
OF_SPREAD, OF_SIZE = 10.0, 0.1
TIGHTEST = 1e-3
# Of integers, and of values that are no numbers, this part may be others.
MOST_OTHERS = 0.01
# Fewer values than these don't tell how much they vary.
FEW = 16

Arrays = Sequence[NDArray[Any]]


def compare_outputs(expected: Arrays, actual: Arrays) -> str:
    """Empty when all outputs are as good as the same, else which isn't and why."""
    if len(expected) != len(actual):
        return f"there are {len(actual)} outputs instead of {len(expected)}"
    for number, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
        if wrong := _difference(wanted, found):
            return f"output {number}: {wrong}"
    return ""


def _difference(wanted: NDArray[Any], found: NDArray[Any]) -> str:
    if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
        return f"it is {found.dtype} {found.shape} instead of {wanted.dtype} {wanted.shape}"
    tolerance = RELATIVE_TOLERANCE.get(str(wanted.dtype))
    if tolerance is None:
        return _others(wanted != found)
    # Random inputs may lead to values that are no numbers, in the same places.
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    numbers = np.isfinite(a) & np.isfinite(b)
    return _others(np.isfinite(a) != np.isfinite(b)) or _far(a[numbers], b[numbers], max(tolerance, TIGHTEST))


def _others(is_other: NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(is_other))
    return f"{count} of {is_other.size} values are others" if count > MOST_OTHERS * is_other.size else ""


def _far(found: NDArray[np.float64], wanted: NDArray[np.float64], tolerance: float) -> str:
    if wanted.size == 0:
        return ""
    size = _mean(wanted)
    spread = _mean(wanted - np.mean(wanted)) if wanted.size >= FEW else size
    off, allowed = _mean(found - wanted), tolerance * (OF_SPREAD * spread + OF_SIZE * size)
    return f"its values are off by {off:.3g}, {allowed:.3g} is allowed" if off > allowed else ""


def _mean(values: NDArray[np.float64]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
