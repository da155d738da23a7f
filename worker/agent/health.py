"""How this device is: load, temperature, memory, versions. What can't be known is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, TypeVar

import psutil

from core.worker import Vitals

Fact = TypeVar("Fact")

# Reading sensors takes milliseconds, and candidates may be timed meanwhile.
READ_EVERY_S = 10.0
# Names that Linux drivers give to processors' sensors; other sensors count where there is none of these.
_PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu", "soc")


class Sensor(Protocol):
    """What is used of one of psutil's readings."""

    @property
    def current(self) -> float: ...


@dataclass
class HealthMonitor:
    """Reads the vitals, not more often than every ten seconds."""

    clock: Callable[[], float] = time.monotonic
    _read_at: float | None = None
    _latest: Vitals = field(default_factory=Vitals)

    def __call__(self) -> Vitals:
        now = self.clock()
        if self._read_at is None or now - self._read_at >= READ_EVERY_S:
            self._latest, self._read_at = read(), now
        return self._latest


def read() -> Vitals:
    return Vitals(
        tunefarm_version=_version("tunefarm"),
        tvm_version=_version("apache-tvm"),
        load=_known(lambda: psutil.getloadavg()[0]),
        temperature_c=_known(lambda: hottest(psutil.sensors_temperatures())),
        memory_free_bytes=_known(lambda: int(psutil.virtual_memory().available)),
    )


def hottest(sensors: Mapping[str, Sequence[Sensor]]) -> float | None:
    """The hottest processor's degrees Celsius, by the names of drivers; None where no sensor makes sense."""
    named = {name: readings for name, readings in sensors.items() if name.lower().startswith(_PROCESSORS)}
    degrees = (reading.current for readings in (named or sensors).values() for reading in readings)
    return max((one for one in degrees if -50.0 < one < 150.0), default=None)


def _known(ask: Callable[[], Fact]) -> Fact | None:
    """Not every system can be asked everything."""
    try:
        return ask()
    except (AttributeError, OSError, NotImplementedError, psutil.Error):
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
