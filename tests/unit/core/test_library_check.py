"""A library's tables are parsed like the loader does, but in bounded time."""

from __future__ import annotations

import io
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import IO

import pytest

from core.elf_outline import MAX_NAME_BYTES, MAX_RELOCATIONS, MAX_SEGMENTS, outline_library
from core.library_check import MAX_GPU_PROGRAMS, SymbolError, check_cubin, check_library
from tests.shared_libraries import shared_library

RPATH, TEXT_RELOCATIONS, RELA, RELA_BYTES, STRINGS, STRINGS_BYTES = 15, 22, 7, 8, 5, 10
CUBIN = 190


class Counted(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def refusal(data: bytes) -> str:
    """Return why a library is rejected; "" if it is accepted. Assert that the number of reads is bounded."""
    file = Counted(data)
    try:
        check_library(file)
    except SymbolError as error:
        return str(error)
    finally:
        assert file.taken <= 6 * len(data) + 4096
    return ""


def test_names_are_read_by_addresses() -> None:
    outline = outline_library(io.BytesIO(shared_library(["expf", "memcpy"], needed=["libm.so.6"])))
    assert outline.symbols == frozenset(("expf", "memcpy"))
    assert outline.libraries == frozenset(("libm.so.6",))
    assert refusal(shared_library(["expf"], needed=["libm.so.6", "libc.so.6"])) == ""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (shared_library(["memcpy", "system"]), "needs: system"),
        (shared_library(["x" * 65]), "needs: " + "x" * 64),
        (shared_library(["x" * MAX_NAME_BYTES]), "a name"),
        (shared_library(["\x1b[2J"]), r"needs: \x1b[2J"),
        (shared_library(needed=["libevil.so.1"]), "asks for files"),
        (shared_library(tags=[(RPATH, 1)]), "asks for files"),
        (shared_library(tags=[(TEXT_RELOCATIONS, 0)]), "relocations of a kind"),
        (shared_library(tags=[(STRINGS, 1)]), "occurs twice"),
        (shared_library(tags=[(30 + number, 0) for number in range(600)]), "no end"),
        (shared_library(relocations=[(0, 5 << 32, 0)]), "not in the file"),
        (shared_library(relocations=[(0, 0xFFFFFFFF << 32, 0)]), "more than"),
        (shared_library(relocations=[(260, 0, 0)]), "change its dynamic section"),
        (shared_library(relocations=[(0x100000, 1 << 32, 0)] * (MAX_RELOCATIONS + 1)), "more than"),
        (shared_library(tags=[(23, 200), (2, 7)]), "cut short"),
        (shared_library(tags=[(23, 1 << 63), (2, 24)]), "not in the file"),
        (shared_library(tags=[(23, (1 << 64) - 1), (2, (1 << 64) - 1)]), "more than"),
    ],
)
def test_structures_that_compilers_never_write_are_rejected(data: bytes, says: str) -> None:
    assert says in refusal(data)


def patched(data: bytes, place: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(f"<{layout}", changed, place, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("place", "layout", "value", "says"),
    [
        (4, "B", 1, "64 bits"),
        (5, "B", 2, "64 bits"),
        (32, "Q", 1 << 40, "cut short"),
        (32, "Q", (1 << 64) - 1, "cut short"),
        (54, "H", 55, "another size"),
        (56, "H", MAX_SEGMENTS + 1, "more than"),
        (56, "H", 0, "no dynamic section"),
        (56, "H", 1, "no dynamic section"),
        (64, "I", 2, "more than one"),
        (120, "I", 1, "overlap"),
        (64 + 4, "I", 6, "can be changed"),
        (64 + 8, "Q", 1, "makes no sense"),
        (64 + 40, "Q", 1, "makes no sense"),
        (64 + 16, "Q", 0x1000, "not in the file"),
        (120 + 32, "Q", 1 << 62, "not in the file"),
    ],
)
def test_a_damaged_outline_is_refused(place: int, layout: str, value: int, says: str) -> None:
    assert says in refusal(patched(shared_library(), place, layout, value))


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a library that this machine's compiler links."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("linked") / "a.so"
    source = b"int puts(const char *); double exp(double); int (*f)(const char *) = puts;"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, check=True)
    return library.read_bytes()


def test_libraries_of_a_real_compiler_are_accepted(linked: bytes) -> None:
    assert refusal(linked).endswith("needs: puts")


@pytest.mark.parametrize("seed", range(4))
def test_mutated_libraries_are_read_in_bounded_steps(seed: int, linked: bytes) -> None:
    """For any tables, there is an answer after a few reads of the file."""
    rng = random.Random(seed)
    sources = [linked, shared_library(["expf"] * 40, tags=[(30, 0)], needed=["libm.so.6"]), cubin()]
    for _ in range(1500):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 6)):
            layout, size = rng.choice([("B", 1), ("H", 2), ("I", 4), ("Q", 8)])
            # The first KiB has the header and most tables.
            place = rng.randrange(min(len(data), rng.choice([200, 1200, 1 << 30])) - size)
            top = (1 << 8 * size) - 1
            value = rng.choice([0, 1, top, top >> 1, len(data), len(data) - 1, rng.randint(0, top)])
            struct.pack_into(f"<{layout}", data, place, value & top)
        refusal(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))


def cubin(names: list[str] | None = None, sections: int = 3, symbols: int = 0) -> bytes:
    """Return a GPU's program with one table of symbols; the further sections repeat it."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names or ())
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", strings.index(b"\0" + name.encode()) + 1, 0x12, 0, 0, 0, 0)
        for name in names or ()
    )
    table += bytes(24 * symbols)
    at = 64
    made = struct.pack("<2I4Q2I2Q", 0, 3, 0, 0, at, len(strings), 0, 0, 1, 0)
    made += struct.pack("<2I4Q2I2Q", 0, 2, 0, 0, at + len(strings), len(table), 0, 0, 8, 24) * (sections - 1)
    start = at + len(strings) + len(table)
    header = struct.pack(
        "<16s2HI3QI6H",
        *(b"\x7fELF\x02\x01\x01", 2, CUBIN, 1, 0, 0, start, 0),
        *(64, 0, 0, 64, sections, 0),
    )
    return header + strings + table + made


def test_gpu_programs_may_call_only_themselves() -> None:
    check_cubin(cubin())
    with pytest.raises(SymbolError, match="isn't in it: vprintf"):
        check_cubin(cubin(["vprintf"]))
    assert refusal(shared_library() + bytes(3) + cubin(["vprintf"])).endswith("isn't in it: vprintf")


def test_overlapping_tables_are_rejected() -> None:
    """16,000 sections share one table of 60,000 symbols."""
    hostile = cubin(sections=1 << 14, symbols=60_000)
    assert "overlap" in refusal(shared_library() + hostile)


def test_the_number_of_gpu_programs_is_limited() -> None:
    """A library that says at every 20th byte that a GPU's program begins there."""
    start = struct.pack("<16s2H", b"\x7fELF\x02\x01\x01", 2, CUBIN)
    assert "more than" in refusal(shared_library() + start * (MAX_GPU_PROGRAMS + 1))
    assert "can't be read" in refusal(shared_library() + start * MAX_GPU_PROGRAMS)


@pytest.mark.parametrize("text", [b".extern ", b".extern .a ", b".extern\t\t", b".extern .fun ", b".a .b "])
def test_text_that_resembles_ptx_takes_linear_time(text: bytes) -> None:
    assert refusal(shared_library() + b".extern " + text * (1 << 20)) == ""


def test_ptx_that_calls_another_function_is_refused() -> None:
    ptx = b".extern  .visible .func (.param .b32 r) vprintf (.param .b64 a);"
    assert "PTX" in refusal(shared_library() + ptx)


def test_a_file_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(shared_library())
    file: IO[bytes]
    with (tmp_path / "a.so").open("rb") as file:
        check_library(file)
        check_library(file)
