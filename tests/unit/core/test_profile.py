from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from core.profile import Profile, assumed_profile
from tests.devices import PROFILE
from tests.unit.search.dags import DEVICE


def test_a_profile_survives_json() -> None:
    assert Profile.from_json(PROFILE.to_json()) == PROFILE


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "3", '{"hertz": 1}', json.dumps({"hertz": 1, "speed": 2}), "[" * 100_000]
)
def test_invalid_profile_json_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Profile.from_json(text)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), 1e16, "4", None, True])
@pytest.mark.parametrize(
    "field", [f.name for f in fields(Profile) if f.name not in ("multiply_adds", "derived")]
)
def test_impossible_speeds_are_rejected(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        replace(PROFILE, **{field: value})


def test_a_profile_without_float32_is_rejected() -> None:
    with pytest.raises(ValueError, match="float32"):
        replace(PROFILE, multiply_adds={"int8": 1.0})


def test_unmeasured_types_have_float32s_speed() -> None:
    assert PROFILE.issue("int8") == 0.5
    assert PROFILE.issue("bfloat16") == 2.0


@pytest.mark.parametrize(
    ("arch", "features", "registers"),
    [
        ("x86_64", ("avx2", "avx512f", "fma"), 32),
        ("x86_64", ("avx2", "fma"), 16),
        ("x86_64", ("sse4.2",), 16),
        ("aarch64", ("asimd",), 32),
    ],
)
def test_registers_follow_from_the_instruction_set(
    arch: str, features: tuple[str, ...], registers: int
) -> None:
    profile = assumed_profile(arch, features, cores=4)
    assert profile.registers == registers
    assert set(profile.derived) == {f.name for f in fields(Profile)} - {"derived"}


def test_uncalibrated_devices_have_an_assumed_profile() -> None:
    assert DEVICE.profile is None
    assert DEVICE.speeds == assumed_profile(DEVICE.arch, DEVICE.features, DEVICE.cores)
    assert replace(DEVICE, profile=PROFILE).speeds == PROFILE


def test_the_fingerprint_excludes_the_profile() -> None:
    calibrated = replace(DEVICE, profile=PROFILE)
    assert calibrated == DEVICE
    assert calibrated.key == DEVICE.key
    assert calibrated.to_json() == DEVICE.to_json()
