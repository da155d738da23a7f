"""Deviations between the outputs of two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.contestants import Arrays, ProcessContestant

ABSOLUTE = 1e-4
RELATIVE = 1e-3


@dataclass(frozen=True)
class Deviation:
    """The greatest deviations of outputs a from reference outputs b.

    `of_allowed` is the maximum of |a - b| / (ABSOLUTE + RELATIVE |b|): numpy's allclose holds up to 1.
    `absolute` is the maximum of |a - b|, `relative` that of |a - b| / max(|b|, ABSOLUTE / RELATIVE).
    """

    of_allowed: float
    absolute: float
    relative: float


def random_inputs(specs: Sequence[tuple[tuple[int, ...], str]], seed: int) -> list[NDArray[Any]]:
    """Return an input for each (shape, dtype): normal floats, and integers 0 or 1, which are valid as
    indices."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(shape).astype(dtype)
        if np.issubdtype(np.dtype(dtype), np.floating)
        else rng.integers(0, 2, size=shape).astype(dtype)
        for shape, dtype in specs
    ]


def deviation(actual: Arrays, expected: Arrays) -> Deviation:
    """Return the greatest deviation over all outputs. Raises ValueError when shapes differ or a value is
    not finite."""
    parts = [_deviation(a, b) for a, b in zip(actual, expected, strict=True)]
    return _greatest(parts)


def compare_outputs(
    subject: ProcessContestant, reference: ProcessContestant, inputs: Sequence[Arrays]
) -> Deviation:
    """Return the greatest deviation over several sets of inputs."""
    return _greatest([deviation(subject.outputs(each), reference.outputs(each)) for each in inputs])


def _deviation(actual: NDArray[Any], expected: NDArray[Any]) -> Deviation:
    if actual.shape != expected.shape:
        raise ValueError(f"an output has the shape {actual.shape} instead of {expected.shape}")
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("an output is infinite or not a number")
    error, size = np.abs(a - b), np.abs(b)
    relative = error / np.maximum(size, ABSOLUTE / RELATIVE)
    worst = [
        float(np.max(each, initial=0.0)) for each in (error / (ABSOLUTE + RELATIVE * size), error, relative)
    ]
    return Deviation(*worst)


def _greatest(parts: Sequence[Deviation]) -> Deviation:
    return Deviation(
        max(part.of_allowed for part in parts),
        max(part.absolute for part in parts),
        max(part.relative for part in parts),
    )
