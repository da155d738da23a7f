"""Read the names that an ELF file refers to from its tables, without a library.

Libraries are untrusted, and a server reads them in its own process. For any tables, each function takes
linear time and reads at most twice the file's bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

MAX_SEGMENTS = 64
MAX_SECTIONS = 1 << 14
MAX_TAGS = 512
MAX_SYMBOLS = 1 << 16
MAX_RELOCATIONS = 1 << 18
MAX_STRINGS_BYTES = 8 << 20
MAX_NAME_BYTES = 1024

# Constants of <elf.h>.
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_HEADER, _SEGMENT, _SECTION = (
    struct.Struct("<16s2HI3QI6H"),
    struct.Struct("<2I6Q"),
    struct.Struct("<2I4Q2I2Q"),
)
_TAG, _SYMBOL, _RELOCATION = struct.Struct("<2Q"), struct.Struct("<I2BH2Q"), struct.Struct("<QQq")
_LOAD, _DYNAMIC, _WRITABLE = 1, 2, 2
_SYMBOL_TABLE, _DYNAMIC_SYMBOLS = 2, 11
_NEEDED, _PLT_BYTES, _STRINGS, _SYMBOLS, _RELA, _RELA_BYTES = 1, 2, 5, 6, 7, 8
_STRINGS_BYTES, _REL, _TEXT_RELOCATIONS, _PLT, _FLAGS = 10, 17, 22, 23, 30
_FLAG_TEXT_RELOCATIONS = 4
_SMALLEST_PAGE = 4096


class MalformedElf(ValueError):
    """The bytes aren't an ELF file that this module can read. The message is a clause without a full stop."""


@dataclass(frozen=True)
class LibraryOutline:
    """The libraries and symbols that a shared library needs from the process that loads it.

    `tags` are the tags of the entries in its dynamic section. `libraries` has the names of needed libraries,
    `symbols` the names that the loader resolves.
    """

    tags: frozenset[int]
    libraries: frozenset[str]
    symbols: frozenset[str]


def outline_library(file: IO[bytes]) -> LibraryOutline:
    """Read a shared library as the loader does: through memory addresses, without sections.

    Tables that relocations may change during loading are refused. Raises MalformedElf.
    """
    reader = _Reader(file)
    loaded, dynamic = _segments(reader)
    place = _place(loaded, dynamic.address, dynamic.file_bytes, can_be_written=True)
    tags, needed = _read_tags(reader, place, dynamic.file_bytes // _TAG.size)
    if _REL in tags or _TEXT_RELOCATIONS in tags or tags.get(_FLAGS, 0) & _FLAG_TEXT_RELOCATIONS:
        raise MalformedElf("it has relocations of a kind that compilers don't write for such machines")

    def read(address: int, size: int, most: int) -> bytes:
        if size > most:
            raise MalformedElf(f"a table has more than {most} bytes")
        return reader.read(_place(loaded, address, size, can_be_written=False), size)

    strings = read(tags.get(_STRINGS, 0), tags.get(_STRINGS_BYTES, 0), MAX_STRINGS_BYTES)
    numbers: set[int] = set()
    for table, table_bytes in ((_RELA, _RELA_BYTES), (_PLT, _PLT_BYTES)):
        if tags.get(table_bytes):
            data = read(tags.get(table, 0), tags[table_bytes], MAX_RELOCATIONS * _RELOCATION.size)
            numbers |= _symbol_numbers(data, dynamic)
    symbols = read(
        tags.get(_SYMBOLS, 0), (max(numbers, default=0) + 1) * _SYMBOL.size, MAX_SYMBOLS * _SYMBOL.size
    )
    names = {_SYMBOL.unpack_from(symbols, number * _SYMBOL.size)[0] for number in numbers - {0}}
    return LibraryOutline(
        frozenset(tags),
        frozenset(_name(strings, at) for at in needed),
        frozenset(_name(strings, at) for at in names),
    )


def undefined_names(file: IO[bytes], starts: Iterable[int]) -> Iterator[str]:
    """Yield the undefined names of ELF files that begin at the offsets `starts` of one file.

    They are read by their sections. Raises MalformedElf.
    """
    reader = _Reader(file)
    for start in starts:
        header = reader.header(start)
        size, count = header[11], header[12]
        if size != _SECTION.size or not 0 < count <= MAX_SECTIONS:
            raise MalformedElf(f"it has sections of another size, none, or more than {MAX_SECTIONS}")
        sections = reader.table(start + header[6], _SECTION, count)
        for _, kind, _, _, at, size, link, *_ in sections:
            if kind not in (_SYMBOL_TABLE, _DYNAMIC_SYMBOLS):
                continue
            if link >= count or size > MAX_SYMBOLS * _SYMBOL.size or sections[link][5] > MAX_STRINGS_BYTES:
                raise MalformedElf(f"a table has no strings, or more than {MAX_SYMBOLS} symbols")
            strings = reader.read(start + sections[link][4], sections[link][5])
            symbols = reader.table(start + at, _SYMBOL, size // _SYMBOL.size)
            yield from {_name(strings, symbol[0]) for symbol in symbols if symbol[0] and symbol[3] == 0}


@dataclass(frozen=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_bytes: int
    memory_bytes: int
    alignment: int

    @classmethod
    def of(cls, fields: tuple[int, ...]) -> _Segment:
        kind, flags, offset, address, _, file_bytes, memory_bytes, alignment = fields
        segment = cls(kind, flags, offset, address, file_bytes, memory_bytes, max(alignment, _SMALLEST_PAGE))
        if kind == _LOAD and (file_bytes > memory_bytes or (offset - address) % segment.alignment):
            raise MalformedElf("a segment's place in memory makes no sense")
        return segment

    @property
    def first_page(self) -> int:
        return self.address // self.alignment * self.alignment

    @property
    def last_page(self) -> int:
        end = self.address + max(self.memory_bytes, 1) - 1
        return end // self.alignment * self.alignment


class _Reader:
    """Reads parts of a file; in all at most twice the file's size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.seek(0, os.SEEK_END)
        self._size = file.tell()
        self._left = 2 * self._size

    def read(self, start: int, size: int) -> bytes:
        if start + size > self._size:
            raise MalformedElf("it is cut short")
        self._left -= size
        if self._left < 0:
            raise MalformedElf("its tables overlap")
        self._file.seek(start)
        return self._file.read(size)

    def header(self, start: int) -> tuple[int, ...]:
        header = _HEADER.unpack(self.read(start, _HEADER.size))
        if not header[0].startswith(_MAGIC):
            raise MalformedElf("it is no ELF file of 64 bits")
        return header

    def table(self, start: int, entry: struct.Struct, count: int) -> list[tuple[int, ...]]:
        return list(entry.iter_unpack(self.read(start, count * entry.size)))


def _segments(reader: _Reader) -> tuple[list[_Segment], _Segment]:
    """Return the loaded segments and the dynamic segment. Raises MalformedElf."""
    header = reader.header(0)
    start, size, count = header[5], header[9], header[10]
    if size != _SEGMENT.size or count > MAX_SEGMENTS:
        raise MalformedElf(f"it has segments of another size, or more than {MAX_SEGMENTS}")
    segments = [_Segment.of(fields) for fields in reader.table(start, _SEGMENT, count)]
    loaded = [segment for segment in segments if segment.kind == _LOAD]
    if any(before.last_page >= after.first_page for before, after in pairwise(loaded)):
        raise MalformedElf("its segments overlap")
    dynamic = [segment for segment in segments if segment.kind == _DYNAMIC]
    if len(dynamic) != 1:
        raise MalformedElf("it has no dynamic section, or more than one")
    return loaded, dynamic[0]


def _symbol_numbers(relocations: bytes, dynamic: _Segment) -> set[int]:
    """Return the numbers of the symbols that relocations refer to; 0 means no symbol."""
    if len(relocations) % _RELOCATION.size:
        raise MalformedElf("its relocations are cut short")
    numbers = set()
    for address, info, _ in _RELOCATION.iter_unpack(relocations):
        if dynamic.address <= address < dynamic.address + dynamic.memory_bytes:
            raise MalformedElf("its relocations change its dynamic section")
        numbers.add(info >> 32)
    return numbers


def _place(loaded: list[_Segment], address: int, size: int, *, can_be_written: bool) -> int:
    """Return the file offset of a memory address. Raises MalformedElf."""
    for segment in loaded:
        start = address - segment.address
        if start >= 0 and start + size <= segment.file_bytes:
            if segment.flags & _WRITABLE and not can_be_written:
                raise MalformedElf("a table can be changed while it is read")
            return segment.offset + start
    raise MalformedElf("a table is not in the file")


def _read_tags(reader: _Reader, place: int, count: int) -> tuple[dict[int, int], list[int]]:
    """Return the dynamic section's entries up to its end, and the offsets of the names of needed
    libraries."""
    tags: dict[int, int] = {}
    needed: list[int] = []
    for tag, value in reader.table(place, _TAG, min(count, MAX_TAGS)):
        if tag == 0:
            return tags, needed
        if tag == _NEEDED:
            needed.append(value)
        elif tags.setdefault(tag, value) != value:
            raise MalformedElf("an entry of its dynamic section occurs twice")
    raise MalformedElf(f"its dynamic section has no end, or more than {MAX_TAGS} entries")


def _name(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at, at + MAX_NAME_BYTES)
    if end < 0:
        raise MalformedElf(f"a name is not in the file, or has more than {MAX_NAME_BYTES} bytes")
    return strings[at:end].decode("latin-1")
