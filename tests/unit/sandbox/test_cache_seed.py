from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.cache_seed import CacheSeed


@pytest.fixture
def seed(tmp_path: Path) -> CacheSeed:
    return CacheSeed(tmp_path / "kept" / "seed")


def cache_of_a_child(seed: CacheSeed, folder: Path) -> Path:
    folder.mkdir()
    seed.copy_to(folder / "zig")
    return folder / "zig"


def test_each_child_gets_a_copy_of_the_cache(seed: CacheSeed, tmp_path: Path) -> None:
    trusted = cache_of_a_child(seed, tmp_path / "trusted")
    (trusted / "libc.a").write_text("code")
    seed.fill_from(trusted)
    hostile = cache_of_a_child(seed, tmp_path / "hostile")
    assert (hostile / "libc.a").read_text() == "code"
    (hostile / "libc.a").write_text("another's code")
    seed.fill_from(hostile)
    assert (cache_of_a_child(seed, tmp_path / "next") / "libc.a").read_text() == "code"


def test_an_empty_cache_fills_nothing(seed: CacheSeed, tmp_path: Path) -> None:
    seed.fill_from(cache_of_a_child(seed, tmp_path / "child"))
    assert not seed.is_filled


def test_a_link_in_a_cache_is_not_followed(seed: CacheSeed, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the password")
    cache = cache_of_a_child(seed, tmp_path / "child")
    (cache / "link").symlink_to(tmp_path / "secret")
    seed.fill_from(cache)
    assert (seed.folder / "link").is_symlink()
