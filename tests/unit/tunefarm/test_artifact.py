"""Artifacts are unpacked member by member, and nothing else in the archive is trusted."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.client.artifact import unpack


def archive(path: Path, **members: bytes | str) -> Path:
    """A tar of files, or of symbolic links for members given as text."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_both_members_are_written_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    unpack(archive(tmp_path / "a.tar", model__so=b"elf", manifest__json=b"{}", evil__sh=b"rm"), out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {
        "model.so": b"elf",
        "manifest.json": b"{}",
    }


def test_all_members_of_a_bundle_are_written_below_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    model = {"model__so": b"elf", "manifest__json": b"{}"}
    unpack(archive(tmp_path / "a.tar", **{"lib/a__so": b"library"}, **model), out, bundle=True)
    assert (out / "lib" / "a.so").read_bytes() == b"library"
    for name in ("../evil", f"{tmp_path}/evil"):
        with pytest.raises(CommandError, match="leads out of the folder"):
            unpack(archive(tmp_path / "evil.tar", **{name: b"rm"}, **model), out, bundle=True)
    (out / "link").symlink_to(tmp_path)
    with pytest.raises(CommandError, match="leads out of the folder"):
        unpack(archive(tmp_path / "link.tar", **{"link/evil": b"rm"}, **model), out, bundle=True)
    assert not (tmp_path / "evil").exists()


def test_a_name_that_no_file_can_have_is_damaged(tmp_path: Path) -> None:
    path = archive(tmp_path / "null.tar", model__so=b"elf", manifest__json=b"{}")
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("replaced")
        info.pax_headers = {"path": "lib/a\0b"}
        tar.addfile(info)
    with pytest.raises(CommandError, match="damaged artifact"):
        unpack(path, tmp_path, bundle=True)


def test_a_file_without_a_member_or_that_is_no_archive_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no tar at all")
    for bad in (
        tmp_path / "text.tar",
        archive(tmp_path / "half.tar", model__so=b"elf"),
        archive(tmp_path / "link.tar", model__so="/etc/passwd", manifest__json=b"{}"),
    ):
        with pytest.raises(CommandError, match="damaged artifact") as refused:
            unpack(bad, tmp_path)
        assert refused.value.code is ExitCode.REFUSED


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    tar = archive(tmp_path / "a.tar", model__so=b"elf", manifest__json=b"{}")
    with pytest.raises(CommandError, match="can't be written") as refused:
        unpack(tar, tmp_path / "gone")
    assert refused.value.code is ExitCode.LOCAL
