"""Which of the measured programs to time again: the fastest of many noisy measurements is a lucky one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Key = TypeVar("Key")

# Of a batch, so many trials time a program again: while more are to come, and in the last batch, after which
# nothing is left to find out that one was lucky.
SHARE, LAST_SHARE = 1 / 16, 1 / 4
# One measurement is off by about so much, several by that over the square root of how many they are.
NOISE = 0.1
# Times that a program is measured before it is believed.
ENOUGH = 4


@dataclass(frozen=True)
class MeasuredProgram(Generic[Key]):
    """A program by whatever names it, measured so many `times`; its median `seconds` are inf if it failed."""

    key: Key
    seconds: float
    times: int = 1

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError("what was measured was measured once at least")

    @property
    def optimistic_s(self) -> float:
        """The seconds that it may really take, if it was unlucky."""
        return self.seconds * (1 - NOISE / math.sqrt(self.times))


def select_for_remeasurement(measured: Sequence[MeasuredProgram[Key]], count: int) -> list[Key]:
    """Up to `count` that may be the fastest and were not measured often enough to tell, the most hopeful
    first (upper confidence bounds, as bandits are played: Auer et al., 2002)."""
    best_s = min((one.seconds for one in measured), default=math.inf)
    open_ = [one for one in measured if one.times < ENOUGH and one.optimistic_s <= best_s < math.inf]
    return [one.key for one in sorted(open_, key=lambda one: one.optimistic_s)[:count]]


def remeasurement_count(count: int, rng: np.random.Generator, *, is_last: bool) -> int:
    """How many of a batch of `count` trials are for contenders, on average a fixed share."""
    return int(rng.binomial(count, LAST_SHARE if is_last else SHARE))
