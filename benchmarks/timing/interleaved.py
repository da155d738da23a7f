"""Compare latencies of contestants that take turns, so that a slow period of the machine affects all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Block:
    """One turn: untimed calls for `warm_up_s`, then between `min_calls` and `max_calls` timed ones, until
    `min_s`."""

    warm_up_s: float = 0.1
    min_s: float = 0.5
    min_calls: int = 3
    max_calls: int = 200

    def __post_init__(self) -> None:
        if not 1 <= self.min_calls <= self.max_calls:
            raise ValueError(f"a block has between 1 and {self.max_calls} calls, not {self.min_calls}")


class Contestant(Protocol):
    """Something that is timed in turns."""

    def time_block(self, block: Block) -> Sequence[float]:
        """Return the seconds of every timed call of one turn."""


@dataclass(frozen=True)
class Median:
    """A median over blocks, with the 10th and 90th percentile."""

    value: float
    spread: tuple[float, float]


@dataclass(frozen=True)
class Timings:
    """The median seconds of a call in each block of one contestant, in the order of the rounds."""

    blocks: tuple[float, ...]

    @property
    def latency_s(self) -> Median:
        return _median(self.blocks)

    @property
    def per_s(self) -> Median:
        """Calls a second."""
        return _median([1 / block for block in self.blocks])

    def ratio_to(self, other: Timings) -> Median:
        """Return the median of this latency over `other`'s, round by round: what slows a whole round
        cancels out."""
        return _median([ours / theirs for ours, theirs in zip(self.blocks, other.blocks, strict=True)])


@dataclass(frozen=True)
class Pair:
    """Timings of both engines in turns."""

    ours: Timings
    theirs: Timings


def measure(
    contestants: Mapping[str, Contestant],
    rounds: int,
    block: Block,
    *,
    rest_s: float = 0.1,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Timings]:
    """Give every contestant a turn in every round; each round starts with another contestant.

    Between turns there is a pause of `rest_s`, in which threads that spin after their work go to sleep.
    """
    if rounds < 1:
        raise ValueError(f"there is at least one round, not {rounds}")
    medians: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            sleep(rest_s)
            medians[name].append(statistics.median(contestants[name].time_block(block)))
    return {name: Timings(tuple(blocks)) for name, blocks in medians.items()}


def time_calls(
    call: Callable[[], object], block: Block, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, ...]:
    """Time one turn of a plain function; return the seconds of each timed call."""
    warm_at = clock() + block.warm_up_s
    call()
    while clock() < warm_at:
        call()
    secs: list[float] = []
    while len(secs) < block.min_calls or (sum(secs) < block.min_s and len(secs) < block.max_calls):
        start = clock()
        call()
        secs.append(clock() - start)
    return tuple(secs)


@dataclass(frozen=True)
class Counted:
    """A contestant whose call returns how many items it made; a turn gives the seconds of one item."""

    make: Callable[[], int]

    def time_block(self, block: Block) -> Sequence[float]:
        """Raises RuntimeError when no item was made."""
        made: list[int] = []
        secs = time_calls(lambda: made.append(self.make()), block)
        timed = made[-len(secs) :]
        if not sum(timed):
            raise RuntimeError("no item was made that could be counted")
        return [sum(secs) / sum(timed)]


def _median(values: Sequence[float]) -> Median:
    low, high = np.percentile(values, [10, 90])
    return Median(statistics.median(values), (float(low), float(high)))
