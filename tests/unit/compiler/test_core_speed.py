"""A measurement is repeated when the cores have just been slowed down, on a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from compiler.measuring.core_speed import PAUSE_S, SHORT_S, TRIES, CoreSpeed


@dataclass
class Cores:
    """Cores that run at the share `speed` of their fastest speed, and from time `fast_from_s` on at it."""

    speed: float = 1.0
    fast_from_s: float = float("inf")
    takes_s: float = 0.0
    now_s: float = 0.0
    measured: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return 1.0 if self.now_s >= self.fast_from_s else self.speed

    def timed(self) -> list[float]:
        # One call is interrupted.
        return [call_s / self.share for call_s in (1e-4, 5e-4, 1e-4)]

    def measure(self) -> tuple[float, ...]:
        self.measured.append(self.share)
        self.now_s += self.takes_s
        return (1e-3 / self.share,)

    def steady(self, speed: CoreSpeed) -> tuple[tuple[float, ...], float]:
        return speed.steady(self.measure, self.sleep, lambda: self.now_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_speed_is_relative_to_the_fastest_reading() -> None:
    cores = Cores(0.5)
    speed = CoreSpeed(cores.timed)
    assert speed.read() == 1.0, "nothing faster is known"
    cores.speed = 1.0
    assert speed.read() == 1.0
    cores.speed = 0.6
    assert speed.read() == pytest.approx(0.6)


def test_undisturbed_cores_are_measured_once() -> None:
    cores = Cores()
    assert cores.steady(CoreSpeed(cores.timed)) == ((1e-3,), 1.0)
    assert (len(cores.measured), cores.now_s) == (1, 0.0)


def test_a_short_disturbance_is_waited_for() -> None:
    cores = Cores()
    speed = CoreSpeed(cores.timed)
    speed.read()
    cores.speed, cores.fast_from_s = 0.5, PAUSE_S
    assert cores.steady(speed) == ((1e-3,), 1.0)
    assert cores.measured == [0.5, 1.0]


def test_cores_that_stay_slow_are_waited_for_once() -> None:
    """A board that is too hot stays slow for minutes."""
    cores = Cores()
    speed = CoreSpeed(cores.timed)
    speed.read()
    cores.speed = 0.5
    assert cores.steady(speed) == ((2e-3,), 0.5)
    assert len(cores.measured) == TRIES
    assert cores.steady(speed) == ((2e-3,), 0.5)
    assert len(cores.measured) == TRIES + 1
    cores.speed = 1.0
    cores.steady(speed)
    cores.speed = 0.5
    cores.steady(speed)
    assert len(cores.measured) == TRIES + 2 + TRIES, "a new disturbance is waited for"


def test_a_long_measurement_is_not_repeated() -> None:
    cores = Cores(takes_s=2 * SHORT_S)
    speed = CoreSpeed(cores.timed)
    speed.read()
    cores.speed = 0.5
    assert cores.steady(speed) == ((2e-3,), 0.5)
    assert len(cores.measured) == 1


def test_cores_that_slow_down_meanwhile_are_slow() -> None:
    cores = Cores()

    def measure() -> tuple[float, ...]:
        cores.speed = 0.7
        return cores.measure()

    assert CoreSpeed(cores.timed).steady(measure, cores.sleep)[1] == pytest.approx(0.7)
