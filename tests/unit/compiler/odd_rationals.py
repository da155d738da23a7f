"""Fit odd functions by x p(x²) / q(x²), for tanh and erf in compiler/codegen/vector_math.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial, chebyshev
from numpy.typing import NDArray

Array = NDArray[np.float64]
POINTS, ROUNDS = 600, 40


def fit(function: Callable[[Array], Array], limit: float, degrees: tuple[int, int]) -> tuple[Array, Array]:
    """Return p and q, highest power first and q(0) = 1, whose largest relative error on [0, limit] is small.

    Each round solves linear least squares of (p - f q) / (f q'), where q' is q of the round before. Lawson's
    weights are multiplied by the error in every round, which levels the errors.
    """
    x = limit * (1 - np.cos(np.pi * (np.arange(POINTS) + 0.5) / POINTS)) / 2
    quotient = function(x) / x
    upper, lower = (chebyshev.chebvander(2 * (x / limit) ** 2 - 1, degree) for degree in degrees)
    columns = np.hstack([upper, -quotient[:, None] * lower[:, 1:]])
    weights, denominator, best = np.ones(POINTS), np.ones(POINTS), np.inf
    solution: NDArray[Any] = np.zeros(0)
    for _ in range(ROUNDS):
        scale = np.sqrt(weights) / (quotient * denominator)
        found = np.linalg.lstsq(columns * scale[:, None], quotient * scale, rcond=None)[0]
        p, q = np.split(found, [degrees[0] + 1])
        denominator = lower @ np.r_[1.0, q]
        errors = np.abs(upper @ p / denominator / quotient - 1)
        weights = weights * errors / np.mean(weights * errors)
        if errors.max() < best:
            best, solution = errors.max(), found
    p, q = np.split(solution, [degrees[0] + 1])
    numerator, denominator = _powers(p, limit), _powers(np.r_[1.0, q], limit)
    return numerator[::-1] / denominator[0], denominator[::-1] / denominator[0]


def _powers(series: Array, limit: float) -> Array:
    """Convert a Chebyshev series over [0, limit²] to coefficients of powers."""
    powers: Any = Polynomial(chebyshev.cheb2poly(series))(Polynomial([-1.0, 2 / limit**2])).coef
    return np.asarray(powers, np.float64)
