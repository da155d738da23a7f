"""Rounding of floats, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def in_tf32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Round float32 to TF32: ten bits of fraction, to the nearest, ties away from zero."""
    step = np.ldexp(np.float64(1), np.frexp(values)[1] - 11)
    away = np.floor(np.abs(values.astype(np.float64)) / step + 0.5) * step
    return np.asarray(np.copysign(away, values), dtype=np.float32)
