"""Measure energy by RAPL, the counters of x86 processors for the energy that their packages take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass
class _Counter:
    """A package's counter of microjoules, which starts again at 0 after `range_uj`."""

    file: Path
    range_uj: int
    last_uj: int


class EnergyMeter:
    """The energy of all processor packages, idle cores and other processes included."""

    def __init__(self, counters: list[_Counter]) -> None:
        self._counters = counters
        self._joules = 0.0

    @classmethod
    def find(cls, folder: Path = POWERCAP) -> EnergyMeter | None:
        """Return a meter; None if the machine has no readable counters. Often, only root may read them."""
        try:
            packages = [
                zone
                for zone in folder.glob("intel-rapl:*")
                if (zone / "name").read_text().startswith("package")
            ]
            counters = [
                _Counter(
                    zone / "energy_uj",
                    int((zone / "max_energy_range_uj").read_text()),
                    int((zone / "energy_uj").read_text()),
                )
                for zone in packages
            ]
        except (OSError, ValueError):
            return None
        return cls(counters) if counters else None

    def joules(self) -> float:
        """Return the energy taken since the meter was made. Call it once a minute, because counters wrap."""
        for counter in self._counters:
            now_uj = int(counter.file.read_text())
            taken = now_uj - counter.last_uj
            self._joules += (taken if taken >= 0 else taken + counter.range_uj) * 1e-6
            counter.last_uj = now_uj
        return self._joules
