"""How often a candidate is repeated, on a clock that only the candidate moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from compiler.measuring import timing
from compiler.measuring.timing import MAX_CLOSE_REPEATS, MAX_REPEATS, MIN_REPEATS, Kernel

BEST_S = 2e-3


@dataclass
class Machine:
    """A candidate's calls take `secs`, one after the other, and the last of them for all that follow: a third
    more, less and neither by turns when it is `shaky`."""

    secs: list[float]
    shaky: bool = False
    now: float = 0.0
    timed: list[int] = field(default_factory=list)
    calls: int = 0

    def call(self, *_: object) -> None:
        self.calls += 1
        off = (self.calls % 3 - 1) / 3 if self.shaky and len(self.secs) == 1 else 0.0
        self.now += (1.0 + off) * (self.secs.pop(0) if len(self.secs) > 1 else self.secs[0])

    def time_evaluator(self, _name: str, _device: object, number: int, repeat: int, f_preproc: str) -> Any:
        """Warms up first, as TVM's does."""
        assert (number, f_preproc) == (1, timing.FLUSH)

        def evaluate(*_: object) -> Any:
            self.timed.append(repeat)
            self.call()
            return SimpleNamespace(results=[self._timed_call() for _ in range(repeat)])

        return evaluate

    def measure(self, best_s: float | None) -> tuple[float, ...]:
        kernel = Kernel(SimpleNamespace(mod=self), self.call, SimpleNamespace(sync=lambda: None), [], ())
        return kernel.timed(kernel.call(), best_s)

    def _timed_call(self) -> float:
        before = self.now
        self.call()
        return self.now - before


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def make(*secs: float, shaky: bool = False) -> Machine:
        made = Machine(list(secs), shaky)
        monkeypatch.setattr(timing.time, "perf_counter", lambda: made.now)
        return made

    return make


Make = Callable[..., Machine]


@pytest.mark.parametrize(
    ("secs", "repeats"), [(1.0, MIN_REPEATS), (4.5e-3, 4), (2.4e-3, 8), (1e-5, MAX_REPEATS)]
)
def test_with_no_best_known_timing_takes_about_as_long_whatever_is_timed(
    machine: Make, secs: float, repeats: int
) -> None:
    assert len(machine(secs).measure(None)) == repeats


def test_what_is_clearly_slow_is_called_once_more_and_no_further(machine: Make) -> None:
    slow = machine(3 * BEST_S)
    assert slow.measure(BEST_S) == pytest.approx([3 * BEST_S])
    assert slow.now == pytest.approx(2 * 3 * BEST_S)
    assert slow.timed == []


def test_what_is_in_between_is_timed_as_ever(machine: Make) -> None:
    assert len(machine(1.5 * BEST_S).measure(BEST_S)) == len(machine(1.5 * BEST_S).measure(None))


@pytest.mark.parametrize("share", [0.5, 1.0, 1.09])
def test_what_may_be_the_best_is_timed_longer(machine: Make, share: float) -> None:
    secs = (1.0, share * BEST_S, share * BEST_S)
    long = machine(*secs, shaky=True).measure(BEST_S)
    assert sum(long) > 2 * sum(machine(*secs, shaky=True).measure(None))
    assert sum(long) == pytest.approx(timing.CLOSE_TIMING_S, abs=2 * share * BEST_S)


def test_what_is_certain_already_is_not_timed_longer(machine: Make) -> None:
    assert len(machine(BEST_S).measure(BEST_S)) == len(machine(BEST_S).measure(None))


def test_a_machine_that_interrupts_again_and_again_costs_no_more_time(machine: Make) -> None:
    often = machine(*[1e-4] * 3, *[1e-4, 1e-4, 1e-2] * 40, 1e-4)
    assert sum(often.measure(1e-4)) < 3 * timing.CLOSE_TIMING_S


def test_short_ones_that_may_be_the_best_are_repeated_more_often(machine: Make) -> None:
    assert len(machine(1e-5, shaky=True).measure(1e-5)) == MAX_CLOSE_REPEATS


@pytest.mark.parametrize("hiccups", [(1.0,), (BEST_S, 1.0)])
def test_one_interrupted_call_makes_nothing_slow(machine: Make, hiccups: tuple[float, ...]) -> None:
    assert len(machine(*hiccups, BEST_S).measure(BEST_S)) >= MIN_REPEATS


def test_what_is_slow_while_its_threads_sleep_only_is_not_slow(machine: Make) -> None:
    cold = [5e-4, 5e-4]
    assert len(machine(*cold, 1e-5).measure(1e-5)) == MAX_REPEATS


def test_what_is_short_and_slow_when_warm_is_timed_briefly(machine: Make) -> None:
    assert machine(8e-4, 8e-4, 5e-5).measure(1e-5) == pytest.approx([5e-5] * MIN_REPEATS)


def test_the_latency_that_counts_is_not_that_of_a_first_call(machine: Make) -> None:
    assert max(machine(1.0, 2 * BEST_S, 2.0, BEST_S).measure(BEST_S)) == pytest.approx(BEST_S)
