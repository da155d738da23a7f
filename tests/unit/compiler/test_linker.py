"""Linkers are chosen by architecture, libraries name their architecture, and errors say what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from compiler.packaging.elf import elf_arch
from compiler.packaging.linker import LinkerError, find_linker, link_library

THIS = platform.machine()
OTHER = "aarch64" if THIS == "x86_64" else "x86_64"


def objects(folder: Path, *command: str) -> list[str]:
    source = folder / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    made = folder / "answer.o"
    subprocess.run([*command, "-c", "-fPIC", str(source), "-o", str(made)], check=True)
    return [str(made)]


def test_this_machines_libraries_are_linked(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    assert compiler is not None
    library = tmp_path / "answer.so"
    link = find_linker(f"{THIS}-linux-gnu")
    link(str(library), objects(tmp_path, compiler))
    assert elf_arch(library.read_bytes()) == THIS


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the extra 'cross' is not installed")
def test_libraries_for_another_machine_are_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", f"{OTHER}-linux-gnu")
    library = tmp_path / "answer.so"
    find_linker(f"{OTHER}-unknown-linux-gnu")(str(library), objects(tmp_path, *zig))
    assert elf_arch(library.read_bytes()) == OTHER


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the extra 'cross' is not installed")
def test_the_linkers_cache_belongs_to_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"tunefarm-zig-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(LinkerError, match="is not this user's own: remove it, or set ZIG_GLOBAL_CACHE_DIR"):
        find_linker(f"{OTHER}-linux-gnu")(str(tmp_path / "x.so"), [])
    assert not any(elsewhere.iterdir())


def test_without_a_cross_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LinkerError, match=f"extra 'cross', or {OTHER}-linux-gnu-gcc"):
        find_linker(f"{OTHER}-linux-gnu")


def test_a_machine_without_objects_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkerError, match="libraries for riscv64 can't be linked"):
        link_library(None, "riscv64-linux-gnu", lambda *_: None, tmp_path / "x.so")


def test_a_linker_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"no object at all")
    with pytest.raises(LinkerError, match=r"could not link: .*broken\.o"):
        find_linker(f"{THIS}-linux-gnu")(str(tmp_path / "x.so"), [str(broken)])
