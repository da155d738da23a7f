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
# Some networks amplify rounding errors: outputs may also differ by AMPLIFIED times their change when the
# inputs change by NUDGE, about an epsilon of float32.
NUDGE = 1.2e-7
AMPLIFIED = 4.0


@dataclass(frozen=True)
class Deviation:
    """The greatest deviations of outputs a from reference outputs b.

    `of_allowed` is the maximum of |a - b| / (ABSOLUTE + RELATIVE |b| + AMPLIFIED max |c - b|). Here c are the
    reference's outputs for inputs that changed by NUDGE. If c equals b, numpy's allclose holds up to 1.
    `absolute` is the maximum of |a - b|, `relative` is the maximum of |a - b| / max(|b|, ABSOLUTE /
    RELATIVE).
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


def deviation(actual: Arrays, expected: Arrays, moved: Arrays) -> Deviation:
    """Return the greatest deviation over all outputs; `moved` are the reference's for changed inputs. Raises
    ValueError when shapes differ or a value is not finite."""
    return _greatest([_deviation(a, b, c) for a, b, c in zip(actual, expected, moved, strict=True)])


def compare_outputs(
    subject: ProcessContestant, reference: ProcessContestant, inputs: Sequence[Arrays]
) -> Deviation:
    """Return the greatest deviation over several sets of inputs."""
    return _greatest(
        [
            deviation(subject.outputs(each), reference.outputs(each), reference.outputs(nudged(each)))
            for each in inputs
        ]
    )


def nudged(inputs: Arrays) -> list[NDArray[Any]]:
    """Return inputs whose floats are larger by NUDGE times their size."""
    return [
        (each * (1 + NUDGE)).astype(each.dtype) if np.issubdtype(each.dtype, np.floating) else each
        for each in inputs
    ]


def _deviation(actual: NDArray[Any], expected: NDArray[Any], moved: NDArray[Any]) -> Deviation:
    if actual.shape != expected.shape:
        raise ValueError(f"an output has the shape {actual.shape} instead of {expected.shape}")
    a, b, c = (each.astype(np.float64) for each in (actual, expected, moved))
    if not all(np.isfinite(each).all() for each in (a, b, c)):
        raise ValueError("an output is infinite or not a number")
    error, size = np.abs(a - b), np.abs(b)
    allowed = ABSOLUTE + RELATIVE * size + AMPLIFIED * np.max(np.abs(c - b), initial=0.0)
    relative = error / np.maximum(size, ABSOLUTE / RELATIVE)
    return Deviation(*(float(np.max(each, initial=0.0)) for each in (error / allowed, error, relative)))


def _greatest(parts: Sequence[Deviation]) -> Deviation:
    return Deviation(
        max(part.of_allowed for part in parts),
        max(part.absolute for part in parts),
        max(part.relative for part in parts),
    )
