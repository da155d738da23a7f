"""Energy of a machine: packages are added up, counters wrap, and power is integrated."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from system.energy import EnergyMeter


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def zone(sysfs: Path, number: str, name: str, energy_uj: int) -> Path:
    folder = sysfs / "class/powercap" / f"intel-rapl:{number}"
    return write(folder, name=name, max_energy_range_uj=1_000_000, energy_uj=energy_uj) / "energy_uj"


def found(sysfs: Path) -> EnergyMeter:
    meter = EnergyMeter.find(sysfs)
    assert meter is not None
    return meter


def test_packages_are_added_up_and_counters_wrap(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "0", "package-0", 900_000), zone(tmp_path, "1", "package-1", 0)
    zone(tmp_path, "0:0", "core", 5)  # a part of a package
    meter = found(tmp_path)
    meter.sample(10.0)
    first.write_text("100000")
    second.write_text("50000")
    meter.sample(11.0)
    first.write_text("150000")
    meter.sample(12.0)
    assert meter.joules(10.0, 11.0) == pytest.approx(0.25)
    assert meter.joules(10.5, 11.5) == pytest.approx(0.15)
    assert meter.joules(9.0, 11.0) is None
    assert meter.joules(11.0, 12.5) is None


def test_a_boards_supply_is_integrated(tmp_path: Path) -> None:
    parts = {"in2_label": "VDD_CPU_GPU_CV", "in2_input": 5000, "curr2_input": 900}
    hwmon = tmp_path / "class/hwmon"
    write(hwmon / "hwmon0", name="cpu_thermal", temp1_input=40_000)
    board = write(
        hwmon / "hwmon1", name="ina3221", in1_label="VDD_IN", in1_input=5000, curr1_input=1000, **parts
    )
    meter = found(tmp_path)
    meter.sample(0.0)
    (board / "curr1_input").write_text("3000")
    meter.sample(2.0)
    assert meter.joules(0.0, 2.0) == pytest.approx(20.0)
    (board / "curr1_input").unlink()
    meter.sample(3.0)  # the sensor has vanished
    assert meter.joules(2.0, 3.0) is None


def test_an_open_meter_samples_by_itself(tmp_path: Path) -> None:
    meter_of_server = write(tmp_path / "class/hwmon/hwmon3", name="power_meter", power1_average=100_000_000)
    assert meter_of_server.is_dir()
    with found(tmp_path) as meter:
        began_s = ended_s = time.monotonic()
        while ended_s < began_s + 0.1:
            ended_s = time.monotonic()
    assert meter.joules(began_s, ended_s) == pytest.approx(100 * (ended_s - began_s))


def test_a_machine_without_readable_counters_has_no_meter(tmp_path: Path) -> None:
    assert EnergyMeter.find(tmp_path) is None
    zone(tmp_path, "0", "package-0", 0).unlink()
    write(tmp_path / "class/hwmon/hwmon0", name="ina3221", in1_label="VDD_GPU", in1_input=5, curr1_input=5)
    assert EnergyMeter.find(tmp_path) is None
