"""Select programs to measure again, because the fastest of many noisy measurements was lucky."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Key = TypeVar("Key")

# The fraction of a batch's trials that measure programs again. It is larger in the last batch, the last
# chance to notice that the fastest program was lucky.
SHARE, LAST_SHARE = 1 / 16, 1 / 4
# The relative error of one measurement. For several measurements it is divided by the square root of their
# number.
NOISE = 0.1
# The most measurements of one program.
MAX_MEASUREMENTS = 4


@dataclass(frozen=True)
class MeasuredProgram(Generic[Key]):
    """A program, named by any `key`, and the median `seconds` of its measurements, inf for a failure. It was
    measured `times` times. `speed` is the speed of the device in the last measurement, as a share of its
    fastest speed.
    """

    key: Key
    seconds: float
    times: int = 1
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError("a measured program was measured at least once")

    @property
    def optimistic_s(self) -> float:
        """A lower confidence bound of the program's seconds on a device at full speed."""
        return self.speed * self.seconds * (1 - NOISE / math.sqrt(self.times))


def select_for_remeasurement(measured: Sequence[MeasuredProgram[Key]], count: int) -> list[Key]:
    """Return up to `count` programs that may be the fastest but have too few measurements to tell.

    Programs of the lowest confidence bound come first, as in the bandits of Auer et al. (2002).
    """
    best_s = min((each.seconds for each in measured), default=math.inf)
    unsure = [
        each for each in measured if each.times < MAX_MEASUREMENTS and each.optimistic_s <= best_s < math.inf
    ]
    return [each.key for each in sorted(unsure, key=lambda each: each.optimistic_s)[:count]]


def remeasurement_count(count: int, rng: np.random.Generator, *, is_last: bool) -> int:
    """Return how many trials of a batch of `count` measure programs again: on average a fixed fraction."""
    return int(rng.binomial(count, LAST_SHARE if is_last else SHARE))
