"""This device's vitals: load, temperature, memory, versions. Values that can't be read are left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import psutil

from core.worker import Vitals
from system.version import installed_version

_T = TypeVar("_T")

# The shortest time between readings, because reading sensors takes milliseconds and may disturb timings.
READ_EVERY_S = 10.0
# Prefixes of the names of processors' sensors in Linux.
_PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu", "soc")


class Sensor(Protocol):
    """A temperature reading of psutil."""

    @property
    def current(self) -> float: ...


@dataclass
class HealthMonitor:
    """Reads the vitals, at most every READ_EVERY_S seconds."""

    clock: Callable[[], float] = time.monotonic
    read: Callable[[], Vitals] = field(default_factory=lambda: read_vitals)
    _read_at: float | None = None
    _latest: Vitals = field(default_factory=Vitals)

    def __call__(self) -> Vitals:
        now = self.clock()
        if self._read_at is None or now - self._read_at >= READ_EVERY_S:
            self._latest, self._read_at = self.read(), now
        return self._latest


def read_vitals() -> Vitals:
    return Vitals(
        tunefarm_version=installed_version(),
        tvm_version=installed_version("apache-tvm"),
        onnxruntime_version=installed_version("onnxruntime"),
        infers=True,
        load=_read(lambda: psutil.getloadavg()[0]),
        temperature_c=_read(lambda: hottest(psutil.sensors_temperatures())),
        memory_free_bytes=_read(lambda: int(psutil.virtual_memory().available)),
    )


def hottest(sensors: Mapping[str, Sequence[Sensor]]) -> float | None:
    """Return the highest temperature in degrees Celsius, given readings by driver.

    If there is no sensor of a processor, other sensors count. Return None if no reading is plausible.
    """
    named = {name: readings for name, readings in sensors.items() if name.lower().startswith(_PROCESSORS)}
    degrees = (reading.current for readings in (named or sensors).values() for reading in readings)
    return max((each for each in degrees if -50.0 < each < 150.0), default=None)


def _read(reading: Callable[[], _T]) -> _T | None:
    try:
        return reading()
    except (AttributeError, OSError, NotImplementedError, psutil.Error):  # not on this system
        return None
