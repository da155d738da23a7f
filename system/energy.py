"""Measure the energy that a machine takes, by RAPL or by a board's power sensor.

RAPL counts the energy of x86 processors. Boards such as NVIDIA's Jetsons have a sensor at their supply.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np

SYSFS = Path("/sys")
SAMPLE_S = 0.02
# The labels of sensors that measure a whole board's supply. Other sensors measure parts of a board.
SUPPLIES = ("VDD_IN", "POM_5V_IN")
# The name of the kernel's driver for the power meter of a server (ACPI).
SERVER_METER = "power_meter"


class _Source(Protocol):
    def joules(self, now_s: float) -> float:
        """Return the energy since the first call. Raises OSError or ValueError for an unreadable file."""
        ...


@dataclass
class _Counter:
    """A package's counter of microjoules, which starts again at 0 after `range_uj`."""

    file: Path
    range_uj: int
    last_uj: int
    taken_uj: int = 0

    def joules(self, now_s: float) -> float:
        now_uj = int(self.file.read_text())
        taken = now_uj - self.last_uj
        self.taken_uj += taken if taken >= 0 else taken + self.range_uj
        self.last_uj = now_uj
        return self.taken_uj * 1e-6


@dataclass
class _Sensor:
    """A power sensor. The product of its files is the power in microwatts."""

    files: tuple[Path, ...]
    last_s: float | None = None
    last_w: float = 0.0
    taken_j: float = 0.0

    def joules(self, now_s: float) -> float:
        now_w = 1e-6
        for file in self.files:
            now_w *= int(file.read_text())
        if self.last_s is not None:
            self.taken_j += (self.last_w + now_w) / 2 * (now_s - self.last_s)
        self.last_s, self.last_w = now_s, now_w
        return self.taken_j


class EnergyMeter:
    """Samples the energy of a machine while it is open. Idle cores and other processes are included."""

    def __init__(self, sources: Sequence[_Source]) -> None:
        self._sources = sources
        self._times: list[float] = []
        self._joules: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_closed, daemon=True)

    @classmethod
    def find(cls, sysfs: Path = SYSFS) -> EnergyMeter | None:
        """Return a meter; None without readable counters or sensors. Often, only root may read them."""
        finders: tuple[Callable[[Path], Iterator[_Source]], ...] = (_counters, _sensors)
        for find in finders:
            with contextlib.suppress(OSError, ValueError):
                if sources := list(find(sysfs)):
                    return cls(sources)
        return None

    def __enter__(self) -> Self:
        self.sample(time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def sample(self, now_s: float) -> None:
        """Read all counters and sensors. `now_s` is the time of `time.monotonic`."""
        with contextlib.suppress(OSError, ValueError):
            joules = sum(source.joules(now_s) for source in self._sources)
            self._times.append(now_s)
            self._joules.append(joules)

    def joules(self, began_s: float, ended_s: float) -> float | None:
        """Return the energy between two times; None if the samples don't cover them."""
        if not self._times or not self._times[0] <= began_s <= ended_s <= self._times[-1]:
            return None
        began_j, ended_j = np.interp((began_s, ended_s), self._times, self._joules)
        return float(ended_j - began_j)

    def _sample_until_closed(self) -> None:
        while not self._ends.wait(SAMPLE_S):
            self.sample(time.monotonic())
        self.sample(time.monotonic())


def _counters(sysfs: Path) -> Iterator[_Counter]:
    for zone in sorted((sysfs / "class/powercap").glob("intel-rapl:*")):
        if (zone / "name").read_text().startswith("package"):
            file, limit = zone / "energy_uj", zone / "max_energy_range_uj"
            yield _Counter(file, int(limit.read_text()), int(file.read_text()))


def _sensors(sysfs: Path) -> Iterator[_Sensor]:
    """Yield a sensor of the whole machine, if there is one and it can be read."""
    for chip in sorted((sysfs / "class/hwmon").glob("hwmon*")):
        for files in _supplies(chip):
            for file in files:
                int(file.read_text())
            yield _Sensor(files)
            return


def _supplies(chip: Path) -> Iterator[tuple[Path, ...]]:
    """Yield the files whose product is the power of the whole machine in microwatts."""
    if (chip / "name").read_text().strip() == SERVER_METER:
        yield (chip / "power1_average",)
    for label in sorted(chip.glob("in*_label")):
        if label.read_text().strip() in SUPPLIES:
            number = label.name.removeprefix("in").removesuffix("_label")
            yield chip / f"in{number}_input", chip / f"curr{number}_input"
