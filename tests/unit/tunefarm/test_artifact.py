"""Artifacts are unpacked member by member, and nothing else in the archive is trusted."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from system.command import CommandError
from tests.tar_blocks import DIGITS, block
from tunefarm.client.artifact import QUANTIZED, published_tasks, unpack


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
    (out / "include").symlink_to(tmp_path)
    with pytest.raises(CommandError, match="leads out of the folder"):
        unpack(archive(tmp_path / "link.tar", **{"include/evil": b"rm"}, **model), out, bundle=True)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "/evil", "lib/../../evil", "lib/..", "lib//evil", "./evil", "lib", "lib/", ""),
        *("__bashrc", "__ssh/authorized_keys", "lib/__hidden", "Makefile", "setup__py", "model__so/evil"),
        *("MODEL__SO", "manifest__json ", "lib/a\nb", "lib/\x1b[2J", "quantized__onnx", "lib/\u212a"),
    ],
)
def test_a_service_writes_only_the_files_of_a_bundle(name: str, tmp_path: Path) -> None:
    out = tmp_path / "a home"
    (out / "lib").mkdir(parents=True)
    (out / "model.so").write_bytes(b"old")
    members = {"model__so": b"new", "manifest__json": b"{}", name: b"evil"}
    with pytest.raises(CommandError, match="damaged artifact"):
        unpack(archive(tmp_path / "evil.tar", **members), out, bundle=True)
    assert sorted(file.name for file in out.rglob("*")) == ["lib", "model.so"]
    assert (out / "model.so").read_bytes() == b"old"


def test_a_member_that_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    """A sparse file of a kilobyte may have a terabyte of zeros, and a link may lead anywhere."""
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    for number, kind in enumerate((*kinds, None)):
        path = archive(tmp_path / "a.tar", manifest__json=b"{}")
        with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
            info = tarfile.TarInfo("model.so")
            if kind is None:
                content = b"0\n".ljust(512, b"\0")
                info.size, info.pax_headers = len(content), headers
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = kind, "manifest.json"
                tar.addfile(info)
        out = tmp_path / f"out{number}"
        out.mkdir()
        with pytest.raises(CommandError, match="damaged artifact"):
            unpack(path, out)
        assert list(out.iterdir()) == []


def test_a_services_archive_is_read_in_bounded_steps(tmp_path: Path) -> None:
    """A pax header of digits keeps tarfile busy for minutes, and a million files fill the memory."""
    good = archive(tmp_path / "a.tar", model__so=b"elf", manifest__json=b'{"tasks": []}').read_bytes()
    for bad in (DIGITS + good, block(b"0", 0, b"x") * 1001 + good):
        (tmp_path / "a.tar").write_bytes(bad)
        for read in (lambda path: unpack(path, tmp_path), published_tasks):
            with pytest.raises(CommandError, match="damaged artifact"):
                read(tmp_path / "a.tar")


def test_the_last_of_two_members_with_a_name_counts(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", model__so=b"first", manifest__json=b"{}")
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo("model.so")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"last"))
    unpack(path, tmp_path, bundle=True)
    assert (tmp_path / "model.so").read_bytes() == b"last"


def test_a_folder_never_has_the_manifest_of_another_library(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    model = {"model__so": b"old", "manifest__json": b"{}"}
    unpack(archive(tmp_path / "old.tar", **model), out)
    damaged = archive(tmp_path / "half.tar", model__so=b"new", manifest__json=b"x" * 5000)
    damaged.write_bytes(damaged.read_bytes()[:4000])
    with pytest.raises(CommandError):
        unpack(damaged, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {
        "model.so": b"old",
        "manifest.json": b"{}",
    }
    (out / "lib").touch()  # a folder of the bundle can't be made
    with pytest.raises(CommandError, match="can't be written"):
        unpack(archive(tmp_path / "new.tar", **{"lib/a__so": b"library"}, **model), out, bundle=True)
    assert sorted(file.name for file in out.iterdir()) == ["lib", "model.so"]


def test_a_quantized_model_goes_with_its_artifact(tmp_path: Path) -> None:
    file = tmp_path / QUANTIZED
    for manifest, is_kept in ((b"{}", True), (b'{"quantization": {"kept": 0}}', True), (b"{}", False)):
        file.write_bytes(b"a model")  # the user's own, and then ours
        unpack(archive(tmp_path / "a.tar", model__so=b"elf", manifest__json=manifest), tmp_path)
        assert file.exists() == is_kept


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
