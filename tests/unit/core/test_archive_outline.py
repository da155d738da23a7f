"""Names in archives are parsed like the standard library does, but in bounded time."""

from __future__ import annotations

import io
import mmap
import random
import struct
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import pytest

from core.archive_outline import MalformedArchive, check_plain_tar, first_tar_name, zip_names
from core.model_format import ModelFormat, UnknownFormat, recognise
from tests.tar_blocks import DIGITS, block, padded

LONG = "deep/" * 60 + "network.onnx"
MIB = 1 << 20


class Counted(io.BytesIO):
    """Counts the bytes that are read, and the reads."""

    taken = reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        self.reads += 1
        return data


def tarred(name: str, layout: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout) as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.size = kind, 3 if kind == tarfile.REGTYPE else 0
        archive.addfile(entry, io.BytesIO(b"abc"))
    return buffer.getvalue()


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["m.onnx", "./dir/m.onnx", "a" * 100, LONG, "übung/模型.onnx"])
def test_the_first_tar_name_equals_tarfiles(name: str, layout: int) -> None:
    if layout == tarfile.USTAR_FORMAT and name == LONG:
        name = f"{'p' * 150}/{'m' * 90}.onnx"  # more doesn't fit
    data = tarred(name, layout)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert first_tar_name(io.BytesIO(data)) == archive.getnames()[0]
    is_model = name.endswith(".onnx")
    if is_model:
        assert recognise(io.BytesIO(data)) is ModelFormat.ONNX_ARCHIVE


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_tar_entries_that_are_not_files_are_rejected(kind: bytes) -> None:
    data = tarred("m.onnx", tarfile.PAX_FORMAT, kind)
    assert first_tar_name(io.BytesIO(data)) is None


def test_an_empty_tar_has_no_first_name() -> None:
    assert first_tar_name(io.BytesIO(bytes(10240))) is None


TARS = {
    "digits": DIGITS,
    "few digits": block(b"x", 60_000) + padded(b"1" * 60_000) + block(b"0", 0, b"m.onnx"),
    "a name of 8 GiB": block(b"L", (8 << 30) - 1),
    "headers without end": (block(b"L", 3) + padded(b"abc")) * 1000,
    "pax of length 0": block(b"x", 10) + padded(b"0 path=a\n\n"),
    "pax beyond its end": block(b"x", 12) + padded(b"99 path=abc\n"),
    "pax without a value": block(b"x", 6) + padded(b"6 pat\n"),
    "a checksum that is wrong": block(b"0", 0, b"m.onnx").replace(b"m.onnx", b"n.onnx"),
    "a size that is no number": block(b"x", 0)[:124] + b"zzzzzzzzzzz\0" + block(b"x", 0)[136:],
    "cut short": block(b"L", 600) + b"a" * 100,
    "half a header": block(b"0", 0)[:300],
}


@pytest.mark.parametrize("name", TARS)
def test_a_malformed_tar_is_rejected_after_few_bytes(name: str) -> None:
    file = Counted(TARS[name])
    with pytest.raises(MalformedArchive):
        first_tar_name(file)
    assert file.reads <= 20
    assert file.taken <= 128 << 10


def test_a_digit_bomb_is_refused_by_name() -> None:
    with pytest.raises(UnknownFormat, match="a damaged tar archive"):
        recognise(io.BytesIO(DIGITS))


def plain(*sizes: int) -> bytes:
    """Return a tar of files with these sizes."""
    return b"".join(block(b"0", size) + padded(bytes(size)) for size in sizes) + bytes(1024)


def resized(field: bytes) -> bytes:
    """Return a header with another field of its size, and the right checksum."""
    header = bytearray(block(b"0", 0))
    header[124:136], header[148:156] = field.rjust(12, b"\0"), b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize(
    "data",
    [
        DIGITS,
        plain(*[0] * 1001),
        plain(3)[:1024],  # without its end
        plain(600)[:1536],
        *(block(bytes([kind]), 0) + plain(1) for kind in b"521xgLS7\0?"),
        # tarfile takes the first size for 0, and the file's content for headers.
        resized(b"00000000144") + padded(b"1" * 100) + plain(1),
        resized(b"\x80" + bytes(10) + b"\x64") + padded(b"1" * 100) + plain(1),
        b"",
        bytes(100),
    ],
    ids=range(18),
)
def test_a_tar_of_more_than_plain_files_is_refused(data: bytes) -> None:
    file = Counted(data)
    with pytest.raises(MalformedArchive):
        check_plain_tar(file)
    assert file.taken <= 512 * 1001


def test_a_tar_of_plain_files_is_read_as_tarfile_reads_it() -> None:
    file = io.BytesIO(plain(0, 1, 511, 512, 513))
    check_plain_tar(file)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        assert [entry.size for entry in archive] == [0, 1, 511, 512, 513]
    check_plain_tar(io.BytesIO(plain(*[0] * 1000)))


def zipped(names: list[str], comment: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = comment
        for name in names:
            archive.writestr(name, b"data")
    return buffer.getvalue()


@pytest.mark.parametrize("comment", [b"", b"short", b"c" * 65535])
def test_zip_names_equal_zipfiles(comment: bytes) -> None:
    names = ["m/models/model.json", "m/data/weights/weight_0", "m/übung", "m/" + "x" * 1000]
    assert list(zip_names(io.BytesIO(zipped(names, comment)))) == names
    assert list(zip_names(io.BytesIO(zipped([], comment)))) == []


def test_the_directory_of_a_large_archive_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # zipfile writes records of 64 bits from these sizes on.
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    names = ["m/models/model.json", *(f"m/data/{number}" for number in range(9))]
    data = zipped(names)
    assert b"PK\x06\x06" in data
    assert list(zip_names(io.BytesIO(data))) == names
    assert recognise(io.BytesIO(data)) is ModelFormat.EXPORTED_PROGRAM


def end_of(entries: int, size: int, start: int) -> bytes:
    return b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, entries, entries, size, start, 0)


def end_64(entries: int, size: int, start: int, at: int) -> bytes:
    record = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, entries, entries, size, start)
    return record + b"PK\x06\x07" + struct.pack("<IQI", 0, at, 1) + end_of(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)


ENTRY = b"PK\x01\x02" + bytes(24) + struct.pack("<3H", 3, 0, 0) + bytes(12) + b"abc"
LOCAL = b"PK\x03\x04".ljust(300, b"\0")
ZIPS = {
    "no directory": LOCAL,
    "a directory beyond the end": LOCAL + end_of(1, 49, 5000),
    "a directory of another size": LOCAL + ENTRY + end_of(1, 48, 300),
    "fewer entries than it says": LOCAL + ENTRY + end_of(2, 49, 300),
    "more entries than it says": LOCAL + ENTRY * 2 + end_of(1, 98, 300),
    "no entries": LOCAL + bytes(49) + end_of(1, 49, 300),
    "the greatest integers": LOCAL + end_64(2**64 - 1, 2**64 - 1, 2**64 - 1, 300),
    "a record of 64 bits elsewhere": LOCAL + end_64(0, 0, 0, 2**64 - 1),
    "a record of 64 bits that is none": LOCAL + b"x" * 100 + end_64(0, 0, 0, 300)[56:],
    "cut short": zipped(["m/models/model.json"])[:-5],
}
LARGE_ZIPS: dict[str, Callable[[], bytes]] = {
    "a directory of 64 MiB": lambda: LOCAL + ENTRY + bytes(64 * MIB) + end_of(65535, 64 * MIB + 49, 300),
    "a million entries": lambda: LOCAL + ENTRY * 1_000_000 + end_64(1_000_000, 49_000_000, 300, 49_000_300),
}


@pytest.mark.parametrize("name", [*ZIPS, *LARGE_ZIPS])
def test_a_malformed_zip_is_rejected_in_little_memory(name: str) -> None:
    file = io.BytesIO(ZIPS[name] if name in ZIPS else LARGE_ZIPS[name]())
    tracemalloc.start()
    try:
        with pytest.raises(MalformedArchive):
            for _ in zip_names(file):
                pass
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_names_of_many_entries_are_not_stored() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(LOCAL + ENTRY * 60_000 + end_of(60_000, 49 * 60_000, 300))
        tracemalloc.start()
        try:
            assert sum(1 for _ in zip_names(file)) == 60_000
            assert tracemalloc.get_traced_memory()[1] < MIB
        finally:
            tracemalloc.stop()


def outcome(function: Callable[[IO[bytes]], object], data: bytes) -> object:
    try:
        return function(io.BytesIO(data))
    except (MalformedArchive, UnknownFormat) as error:
        return type(error)


def test_randomly_damaged_archives_are_rejected_or_read() -> None:
    """Any bytes raise only the documented exceptions."""
    rng = random.Random(34)
    for data in (tarred(LONG, tarfile.PAX_FORMAT), tarred(LONG, tarfile.GNU_FORMAT), zipped(["m/a", "m/b"])):
        for _ in range(2000):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            spoiled = bytes(damaged[: rng.randint(1, len(damaged))] if rng.random() < 0.3 else damaged)
            outcome(recognise, spoiled)


def test_files_with_any_first_bytes_are_rejected_or_read() -> None:
    rng = random.Random(35)
    heads = [b"PK\x03\x04", b"ML\xefR", b"module", b'{"nodes"', b"", b"\x1c\0\0\0TFL3", b"\x08\x07\x3a"]
    for _ in range(3000):
        outcome(recognise, rng.choice(heads) + rng.randbytes(rng.randint(0, 600)))


def test_a_mapped_archive_is_read(tmp_path: Path) -> None:
    """Before Python 3.13, `seek` of a mapped file returns None."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("one", b"1")
    with (
        (tmp_path / "archive.zip").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert list(zip_names(cast(IO[bytes], mapped))) == ["one"]
