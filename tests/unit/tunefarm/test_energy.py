"""Energy by RAPL: packages are added up, counters wrap, and a machine without them has no meter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefarm.comparison.energy import EnergyMeter


def zone(folder: Path, number: str, name: str, energy_uj: int) -> Path:
    path = folder / f"intel-rapl:{number}"
    path.mkdir()
    for file, text in (("name", name), ("max_energy_range_uj", "1000000"), ("energy_uj", str(energy_uj))):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def test_packages_are_added_up_and_counters_wrap(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "0", "package-0", 900_000), zone(tmp_path, "1", "package-1", 0)
    zone(tmp_path, "0:0", "core", 5)  # a part of a package
    meter = EnergyMeter.find(tmp_path)
    assert meter is not None
    assert meter.joules() == 0
    first.write_text("100000")
    second.write_text("50000")
    assert meter.joules() == pytest.approx(0.25)
    first.write_text("150000")
    assert meter.joules() == pytest.approx(0.3)


def test_a_machine_without_readable_counters_has_no_meter(tmp_path: Path) -> None:
    assert EnergyMeter.find(tmp_path) is None
    zone(tmp_path, "0", "package-0", 0).unlink()
    assert EnergyMeter.find(tmp_path) is None
