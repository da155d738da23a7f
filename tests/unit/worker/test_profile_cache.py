from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.profile import VERSION
from tests.devices import DEVICE
from worker.agent import profile_cache
from worker.agent.profile_cache import ProfileCache

PROFILE = replace(DEVICE.speeds, hertz=4.2e9, derived=("registers",))


def test_a_stored_profile_is_found_by_another_process(tmp_path: Path) -> None:
    ProfileCache(tmp_path / "new").put(DEVICE, PROFILE)
    assert ProfileCache(tmp_path / "new").get(DEVICE) == PROFILE
    assert ProfileCache(tmp_path / "new").get(replace(DEVICE, cores=4)) is None
    assert ProfileCache(tmp_path).get(DEVICE) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"\xff", b"null", b"[" * 60_000])
def test_a_damaged_profile_file_is_ignored(tmp_path: Path, damage: bytes) -> None:
    ProfileCache(tmp_path).put(DEVICE, PROFILE)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert ProfileCache(tmp_path).get(DEVICE) is None
    ProfileCache(tmp_path).put(DEVICE, PROFILE)
    assert ProfileCache(tmp_path).get(DEVICE) == PROFILE
    assert len(list(tmp_path.iterdir())) == 1


def test_another_version_of_the_calibration_measures_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ProfileCache(tmp_path).put(DEVICE, PROFILE)
    monkeypatch.setattr(profile_cache, "VERSION", VERSION + 1)
    assert ProfileCache(tmp_path).get(DEVICE) is None


def test_an_unwritable_folder_keeps_profiles_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = ProfileCache(tmp_path / "file")
    kept.put(DEVICE, PROFILE)
    assert kept.get(DEVICE) == PROFILE
    assert ProfileCache(tmp_path / "file").get(DEVICE) is None
