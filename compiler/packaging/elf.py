"""ELF files: the processor architecture of a library, and object files that hold bytes under a name."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO

# The processor architectures that libraries are linked for, with their numbers in an ELF header.
ARCHS = {"x86_64": 62, "aarch64": 183}
_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
# Kinds of sections, and what they are marked with.
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_WRITE, _ALLOC, _X86_64_LARGE = 1 << 0, 1 << 1, 1 << 28
# The sections that linkers put behind all others, and behind all but .bss. Code of x86-64 reaches 2 GB and
# code of aarch64 4 GB. But the tables that describe it reach 2 GB on both, and stand behind read-only data.
_SECTIONS = {"x86_64": (b".lrodata", _ALLOC | _X86_64_LARGE), "aarch64": (b".ldata", _ALLOC | _WRITE)}
_ALIGNMENT = 64


def elf_arch(start: bytes) -> str | None:
    """Return the machine that an ELF library is for, by its first 20 bytes; None for other files and for
    unknown machines."""
    if not start.startswith(_MAGIC) or len(start) < 20:
        return None
    order = "little" if start[5] == 1 else "big"
    number = int.from_bytes(start[18:20], order)  # type: ignore[arg-type]
    return next((name for name, known in ARCHS.items() if known == number), None)


def write_object(file: BinaryIO, arch: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write an object to be linked for one of ARCHS, in which `name` is these bytes, one part after the
    other. They may have gigabytes: they stand where neither code nor its tables reach over them."""
    section, flags = _SECTIONS[arch]
    texts = [b"", section, b".symtab", b".strtab", b".note.GNU-stack", name.encode()]
    strings = b"\0".join(texts) + b"\0"
    _, data_at, symbols_at, strings_at, stack_at, name_at = (strings.index(text + b"\0") for text in texts)
    file.write(bytes(_ALIGNMENT))  # the header's place
    size = sum(file.write(part) for part in parts)
    file.write(bytes(-size % 8))
    symbols, a_global_object = file.tell(), 0x11
    file.write(_SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(name_at, a_global_object, 0, 1, 0, size))
    file.write(strings + bytes(-len(strings) % 8))
    sections = file.tell()
    for fields in (
        # Name, kind, flags, address, place, size, link, info, alignment, and the size of its entries.
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (data_at, _PROGBITS, flags, 0, _ALIGNMENT, size, 0, 0, _ALIGNMENT, 0),
        # Its strings are in section 3, and its first global symbol is number 1.
        (symbols_at, _SYMTAB, 0, 0, symbols, 2 * _SYMBOL.size, 3, 1, 8, _SYMBOL.size),
        (strings_at, _STRTAB, 0, 0, symbols + 2 * _SYMBOL.size, len(strings), 0, 0, 1, 0),
        # Without it, linkers make the stack executable.
        (stack_at, _PROGBITS, 0, 0, symbols, 0, 0, 0, 1, 0),
    ):
        file.write(_SECTION.pack(*fields))
    file.seek(0)
    a_64_bit, little_endian, version, relocatable = 2, 1, 1, 1
    file.write(
        _HEADER.pack(
            *(_MAGIC, a_64_bit, little_endian, version, 0, 0, relocatable, ARCHS[arch], version),
            *(0, 0, sections, 0, _HEADER.size, 0, 0, _SECTION.size, 5, 3),
        )
    )
