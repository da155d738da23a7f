"""Unmeasured fields of a profile are derived or assumed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from compiler.measuring import calibration
from compiler.measuring.calibration import calibrate, complete_profile
from core.profile import Profile, assumed_profile
from tests.devices import DEVICE

ALL = {f.name for f in fields(Profile)} - {"derived"}
BASE = assumed_profile(DEVICE.arch, DEVICE.features, DEVICE.cores)
RATES = {"l1_rate": 100.0, "l2_rate": 40.0, "l3_rate": 20.0, "memory_rate": 5.0}


def test_without_time_everything_is_assumed() -> None:
    assert calibrate(DEVICE, budget_s=0.0) == replace(BASE, derived=tuple(sorted(ALL)))


def test_measured_fields_are_not_derived() -> None:
    found = {"hertz": 3.3e9, "multiply_adds": {"float32": 1.9, "int8": 0.3}, **RATES}
    profile = complete_profile(found, DEVICE)
    assert set(profile.derived) == ALL - set(found)
    assert profile.hertz == 3.3e9
    assert profile.multiply_adds == {"float32": 1.9, "int8": 0.3}
    assert profile.registers == BASE.registers
    assert {name: getattr(profile, name) for name in RATES} == RATES


def test_other_element_types_alone_leave_float32_assumed() -> None:
    profile = complete_profile({"multiply_adds": {"float64": 0.5}}, DEVICE)
    assert profile.multiply_adds == {"float32": BASE.issue("float32"), "float64": 0.5}
    assert "multiply_adds" in profile.derived


@pytest.mark.parametrize("missing", list(RATES))
def test_a_rate_that_is_missing_lies_between_its_neighbours(missing: str) -> None:
    profile = complete_profile({name: rate for name, rate in RATES.items() if name != missing}, DEVICE)
    rates = [getattr(profile, name) for name in RATES]
    assert rates == sorted(rates, reverse=True)
    assert missing in profile.derived
    assert all(getattr(profile, name) == rate for name, rate in RATES.items() if name != missing)


def test_a_slow_device_has_slow_rates_where_none_was_measured() -> None:
    profile = complete_profile({"l1_rate": BASE.l1_rate / 10}, DEVICE)
    assert profile.memory_rate == pytest.approx(BASE.memory_rate / 10)
    assert profile.memory_rate_all == pytest.approx(BASE.memory_rate_all / 10)
    assert profile.loads == pytest.approx(BASE.l1_rate / 10 / DEVICE.vector_bytes)


def test_noise_makes_no_near_level_slower_than_a_far_one() -> None:
    profile = complete_profile(RATES | {"l2_rate": 10.0, "memory_rate_all": 4.0, "loads": 0.1}, DEVICE)
    assert (profile.l2_rate, profile.l3_rate) == (20.0, 20.0)
    assert profile.memory_rate_all == 5.0, "one of the cores draws as much alone"
    assert profile.loads == pytest.approx(100.0 / DEVICE.vector_bytes)


def test_an_unknown_target_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a target"):
        calibrate(replace(DEVICE, target='{"kind":"abacus"}'))


def test_too_little_memory_for_a_working_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = calibration._Calibration(DEVICE, clock=lambda: 0.0)
    monkeypatch.setattr(calibration, "free_bytes", lambda: 4 * DEVICE.l3_bytes)
    with pytest.raises(MemoryError, match="too little for an L3 cache of 32"):
        _ = measuring._memory_bytes
    monkeypatch.setattr(calibration, "free_bytes", lambda: 8 * DEVICE.l3_bytes)
    assert measuring._memory_bytes == 2 * DEVICE.l3_bytes


@pytest.mark.parametrize(
    ("info", "limit", "free"),
    [
        ("MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:       2 kB\n", None, 2048),
        ("MemAvailable: 2 kB\n", "max\n", 2048),
        ("MemAvailable: 2 kB\n", "1024\n", 1024),
        ("MemTotal: 9 kB\n", "1024\n", 0),
        (None, None, 0),
    ],
)
def test_free_memory_is_limited_by_the_container(
    info: str | None, limit: str | None, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("MEMORY_INFO", info), ("MEMORY_LIMIT", limit)):
        if text is not None:
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(calibration, name, tmp_path / name)
    assert calibration.free_bytes() == free
