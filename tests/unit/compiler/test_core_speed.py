"""The speed of the cores. The tests choose the seconds of the reference kernel."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from compiler.measuring.core_speed import CoreSpeed


@dataclass
class Cores:
    """Cores that run at the share `speed` of their fastest speed."""

    speed: float = 1.0

    def timed(self) -> list[float]:
        # One call is interrupted.
        return [call_s / self.speed for call_s in (1e-4, 5e-4, 1e-4)]


def test_the_speed_is_relative_to_the_fastest_reading() -> None:
    cores = Cores(0.5)
    speed = CoreSpeed(cores.timed)
    assert speed.read() == 1.0, "nothing faster is known"
    cores.speed = 1.0
    assert speed.read() == 1.0
    cores.speed = 0.6
    assert speed.read() == pytest.approx(0.6)


def test_a_clock_that_stands_still_is_no_error() -> None:
    assert CoreSpeed(lambda: (0.0, 0.0, 0.0)).read() == 1.0


@pytest.mark.parametrize(("before", "after"), [(0.7, 1.0), (1.0, 0.7)])
def test_a_measurement_has_the_lower_speed_before_and_after_it(before: float, after: float) -> None:
    cores = Cores()
    speed = CoreSpeed(cores.timed)
    speed.read()
    cores.speed = before

    def measure() -> tuple[float, ...]:
        cores.speed = after
        return (1e-3,)

    measured, meanwhile = speed.watch(measure)
    assert measured == (1e-3,)
    assert meanwhile == pytest.approx(0.7)
