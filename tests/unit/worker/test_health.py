from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil
import pytest

from worker.agent import health
from worker.agent.health import READ_EVERY_S, HealthMonitor, hottest


@dataclass(frozen=True)
class Reading:
    current: float


@pytest.mark.parametrize(
    ("sensors", "degrees"),
    [
        ({}, None),
        ({"cpu_thermal": [48.3]}, 48.3),
        ({"coretemp": [50.0, 61.0, 55.0], "nvme": [70.0]}, 61.0),
        ({"CPU-therm": [44.0], "battery": [90.0]}, 44.0),
        ({"acpitz": [27.8], "nvme": [40.0]}, 40.0),
        ({"k10temp": [-273.0], "nvme": [40.0]}, None),
        ({"coretemp": [float("nan"), 45.0]}, 45.0),
        ({"coretemp": [65535.0]}, None),
    ],
)
def test_the_hottest_processors_temperature_is_reported(
    sensors: Mapping[str, Sequence[float]], degrees: float | None
) -> None:
    assert hottest({name: [Reading(one) for one in all_] for name, all_ in sensors.items()}) == degrees


def test_this_machine_reports_vitals() -> None:
    vitals = health.read_vitals()
    assert vitals.tunefarm_version
    assert vitals.tvm_version
    assert vitals.memory_free_bytes is not None
    assert vitals.memory_free_bytes > 0
    assert vitals.load is None or vitals.load >= 0.0


@pytest.mark.parametrize("error", [AttributeError, OSError, NotImplementedError, psutil.AccessDenied])
def test_vitals_without_a_sensor_are_unknown(
    error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise error()

    monkeypatch.setattr(psutil, "sensors_temperatures", refuse)
    monkeypatch.setattr(psutil, "getloadavg", refuse)
    vitals = health.read_vitals()
    assert (vitals.temperature_c, vitals.load) == (None, None)


def test_sensors_are_read_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(psutil, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    now = 50.0
    monitor = HealthMonitor(lambda: now)
    assert [monitor().load, monitor().load] == [1.0, 1.0]
    now += READ_EVERY_S
    assert [monitor().load, monitor().load] == [2.0, 2.0]
