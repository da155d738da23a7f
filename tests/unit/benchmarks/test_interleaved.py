"""Contestants take turns, so a slow round cancels out of their ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from benchmarks.timing.interleaved import Block, Counted, Timings, measure, time_calls


@dataclass
class Scripted:
    """A contestant with given timings that records its turns."""

    name: str
    turns: Sequence[Sequence[float]]
    log: list[str]
    _left: Iterator[Sequence[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._left = iter(self.turns)

    def time_block(self, block: Block) -> Sequence[float]:
        self.log.append(self.name)
        return next(self._left)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_every_round_starts_with_another_contestant() -> None:
    log: list[str] = []
    rests: list[float] = []
    contestants = {name: Scripted(name, [[1.0]] * 3, log) for name in "abc"}
    measure(contestants, 3, Block(), rest_s=0.25, sleep=rests.append)
    assert "".join(log) == "abcbcacab"
    assert rests == [0.25] * 9


def test_a_latency_is_the_median_of_the_turns_medians() -> None:
    turns = [[1.0, 2.0, 90.0], [3.0, 3.0, 3.0], [4.0, 50.0, 4.0]]
    timings = measure({"a": Scripted("a", turns, [])}, 3, Block(), sleep=lambda _: None)["a"]
    assert timings.blocks == (2.0, 3.0, 4.0)
    assert timings.latency_s.value == 3.0
    assert timings.latency_s.spread == pytest.approx((2.2, 3.8))


def test_a_slow_round_does_not_change_the_ratio() -> None:
    ratio = Timings((2.0, 20.0, 2.0)).ratio_to(Timings((1.0, 10.0, 1.0)))
    assert ratio.value == 2.0
    assert ratio.spread == (2.0, 2.0)


def test_the_ratios_spread_is_taken_over_rounds() -> None:
    ratio = Timings((1.0, 2.0, 3.0)).ratio_to(Timings((1.0, 1.0, 1.0)))
    assert ratio.value == 2.0
    assert ratio.spread == pytest.approx((1.2, 2.8))


@pytest.mark.parametrize(
    ("call_s", "timed"), [(0.001, 200), (0.05, 10), (10.0, 3)], ids=["many", "by time", "slow"]
)
def test_a_turn_is_bounded_by_time_and_by_calls(call_s: float, timed: int) -> None:
    clock = Clock()

    def call() -> None:
        clock.now_s += call_s

    secs = time_calls(call, Block(warm_up_s=0, min_s=0.49, min_calls=3, max_calls=200), clock)
    assert len(secs) == timed
    assert secs == pytest.approx([call_s] * timed)


def test_warming_up_is_not_timed() -> None:
    clock, costs = Clock(), iter([5.0, 0.05, 0.05, 0.05, 1.0, 1.0])

    def call() -> None:
        clock.now_s += next(costs)

    assert time_calls(call, Block(5.12, 0.5, 2, 2), clock) == pytest.approx((1.0, 1.0))


def test_only_calls_after_the_warm_up_are_counted() -> None:
    made = iter((1000, 2, 2))
    (secs_each,) = Counted(lambda: next(made)).time_block(Block(0.0, 0.0, 2, 2))
    assert next(made, None) is None
    assert secs_each > 0
    with pytest.raises(RuntimeError, match="no item was made"):
        Counted(lambda: 0).time_block(Block(0.0, 0.0, 1, 1))


def test_the_rate_is_the_median_of_calls_a_second() -> None:
    rate = Timings((0.5, 0.25, 0.1)).per_s
    assert rate.value == pytest.approx(4.0)
    assert 2 < rate.spread[0] < 4 < rate.spread[1] < 10


def test_a_measurement_needs_a_round_and_a_turn_a_call() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        measure({"a": Scripted("a", [], [])}, 0, Block())
    with pytest.raises(ValueError, match="calls"):
        Block(min_calls=0)
