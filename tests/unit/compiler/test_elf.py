"""Every linker places objects with data behind the code."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
from pathlib import Path

import pytest

from compiler.packaging.elf import ARCHS, elf_arch, write_object
from compiler.packaging.linker import find_linker

THIS = platform.machine()
OTHER = "aarch64" if THIS == "x86_64" else "x86_64"
CONTENT = bytes(range(256)) * 5 + b"end"


def test_the_bytes_are_found_by_their_name(tmp_path: Path) -> None:
    library = _linked(tmp_path, THIS)
    answer, content = ctypes.CDLL(str(library)), ctypes.c_char * len(CONTENT)
    assert content.in_dll(answer, "content").raw == CONTENT
    assert answer.answer() == 42


@pytest.mark.slow_lane
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the extra 'cross' is not installed")
def test_the_bytes_are_linked_for_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    library = _linked(tmp_path, OTHER).read_bytes()
    assert elf_arch(library) == OTHER
    assert CONTENT in library


@pytest.mark.parametrize("arch", ARCHS)
def test_an_object_names_its_machine(arch: str, tmp_path: Path) -> None:
    assert elf_arch(_object(tmp_path, arch).read_bytes()) == arch


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" + bytes(64), b"\x7fELF\x02\x01" + bytes(64)])
def test_other_files_are_for_no_machine(data: bytes) -> None:
    assert elf_arch(data) is None


def _object(folder: Path, arch: str) -> Path:
    path = folder / "content.o"
    with path.open("wb") as file:
        write_object(file, arch, "content", [CONTENT[:100], memoryview(CONTENT)[100:]])
    return path


def _linked(folder: Path, arch: str) -> Path:
    source, library = folder / "answer.c", folder / "answer.so"
    code = "int answer(void) { return 42; }\n"
    source.write_text(f'#ifdef __cplusplus\nextern "C"\n#endif\n{code}')
    find_linker(f"{arch}-linux-gnu")(str(library), [str(source), str(_object(folder, arch))])
    return library
