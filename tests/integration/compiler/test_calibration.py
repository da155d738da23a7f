"""Calibrate this machine, with all of its instruction sets and with fewer."""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from compiler.measuring import calibration
from compiler.measuring.calibration import CalibrationError, calibrate
from compiler.target import detect_device
from core.device import Device
from core.profile import AMX, Profile

# Restores the number of threads for the calling thread and TVM's pool.
CORES = int(os.environ.get("TVM_NUM_THREADS", "2"))
RATES = ("l1_rate", "l2_rate", "l3_rate", "memory_rate")


@pytest.fixture(autouse=True)
def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ROUNDS", 1)


def lesser(device: Device, mcpu: str, vector_bytes: int, *features: str) -> Device:
    target = json.loads(device.target) | {"mcpu": mcpu}
    target.pop("mattr", None)
    return replace(device, mcpu=mcpu, vector_bytes=vector_bytes, features=features, target=json.dumps(target))


def elements(profile: Profile, device: Device) -> float:
    """Return the float32 elements that are multiplied and added per cycle."""
    return profile.issue("float32") * device.vector_bytes / 4


@pytest.mark.slow
def test_this_machine_is_calibrated() -> None:
    device = detect_device(CORES)
    profile = calibrate(device)
    assert set(profile.derived) <= {"registers", "l3_rate", "memory_rate", "memory_rate_all"}
    assert set(profile.multiply_adds) >= {"float32", "float64", "int32", "int8"}
    assert ("dotbfloat16" in profile.multiply_adds) == ("avx512_bf16" in device.features)
    rates = [getattr(profile, name) for name in RATES]
    assert rates == sorted(rates, reverse=True)
    assert profile.memory_rate_all >= profile.memory_rate
    assert profile.loads * device.vector_bytes >= profile.l1_rate * 0.999
    assert Profile.from_json(profile.to_json()) == profile


@pytest.mark.slow_lane
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other names for less")
def test_wider_vectors_have_at_least_the_same_rate() -> None:
    device = detect_device(CORES)
    classes = [lesser(device, "nehalem", 16, "sse4_1", "sse4_2")]
    if {"avx2", "fma"} <= set(device.features):
        classes.append(lesser(device, "haswell", 32, "avx", "avx2", "fma", "sse4_1", "sse4_2"))
    if "avx512f" in device.features:
        classes.append(device)
    profiles = [calibrate(one) for one in classes]
    found = [elements(profile, one) for profile, one in zip(profiles, classes, strict=True)]
    is_widened = ["dotint16" in profile.multiply_adds for profile in profiles]
    assert is_widened == ["avx2" in one.features and "avx512_vnni" not in one.features for one in classes]
    for narrow, wide in itertools.pairwise(found):
        # A wide instruction may be executed as two narrow ones. Anything slower has another width than meant.
        assert wide > 0.5 * narrow
    for profile in profiles:
        for name in ("dotint16", "dotuint8"):
            # As many vectors in a cycle as of float32: these dot products take two or three instructions.
            assert profile.multiply_adds.get(name, 0.0) < 1.2 * profile.issue("float32")
    for one, count in zip(classes, found, strict=True):
        # No core does more than four of them in a cycle.
        assert count <= 4 * one.vector_bytes / 4


class Leaping:
    """A clock that can leap ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.ahead_s


def test_no_measurement_begins_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Leaping()

    def leap(self: object) -> Iterator[None]:
        clock.ahead_s += 1000.0
        yield from ()

    monkeypatch.setattr(calibration._Calibration, "_launch", leap)
    profile = calibrate(detect_device(CORES), budget_s=100.0, clock=clock)
    # AMX's rates are assumed if they weren't measured.
    assert {rate for rate in profile.multiply_adds if not rate.startswith(AMX)} == {"float32"}
    assert "hertz" not in profile.derived
    assert set(profile.derived) >= {"launch_s", "latency_cycles", "loads", *RATES}


def test_a_target_without_code_generation_is_an_error() -> None:
    device = detect_device(CORES)
    other = "riscv64-linux-gnu"
    target = json.dumps({"kind": "llvm", "mtriple": other, "mcpu": "generic-rv64"})
    with pytest.raises(CalibrationError, match="no kernel compiles and runs"):
        calibrate(replace(device, triple=other, target=target))
