"""Read the architecture of ELF libraries, and write ELF objects that hold data under a symbol."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO

# The architectures that libraries can be linked for, with their machine numbers in ELF headers.
ARCHS = {"x86_64": 62, "aarch64": 183}
_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
# Section types and flags.
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_WRITE, _ALLOC, _X86_64_LARGE = 1 << 0, 1 << 1, 1 << 28
# The section that linkers place last, and the one that they place last before .bss. x86-64 code can address 2
# GB and aarch64 code 4 GB. On both, unwind tables address 2 GB and follow read-only data.
_SECTIONS = {"x86_64": (b".lrodata", _ALLOC | _X86_64_LARGE), "aarch64": (b".ldata", _ALLOC | _WRITE)}
_ALIGNMENT = 64


def elf_arch(start: bytes) -> str | None:
    """Return the architecture of an ELF library from its first 20 bytes; None for other files and unknown
    architectures.
    """
    if not start.startswith(_MAGIC) or len(start) < 20:
        return None
    order = "little" if start[5] == 1 else "big"
    number = int.from_bytes(start[18:20], order)  # type: ignore[arg-type]
    return next((name for name, known in ARCHS.items() if known == number), None)


def write_object(file: BinaryIO, arch: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write an object file for one of ARCHS that defines the symbol `name` with the concatenated parts. They
    may have gigabytes, so their section is placed where no code or table addresses past it.
    """
    section, flags = _SECTIONS[arch]
    texts = [b"", section, b".symtab", b".strtab", b".note.GNU-stack", name.encode()]
    strings = b"\0".join(texts) + b"\0"
    _, data_at, symbols_at, strings_at, stack_at, name_at = (strings.index(text + b"\0") for text in texts)
    file.write(bytes(_ALIGNMENT))  # space for the header
    size = sum(file.write(part) for part in parts)
    file.write(bytes(-size % 8))
    symbols, a_global_object = file.tell(), 0x11
    file.write(_SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(name_at, a_global_object, 0, 1, 0, size))
    file.write(strings + bytes(-len(strings) % 8))
    sections = file.tell()
    for fields in (
        # Name, type, flags, address, offset, size, link, info, alignment, and entry size.
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (data_at, _PROGBITS, flags, 0, _ALIGNMENT, size, 0, 0, _ALIGNMENT, 0),
        # The string table is section 3, and the first global symbol has index 1.
        (symbols_at, _SYMTAB, 0, 0, symbols, 2 * _SYMBOL.size, 3, 1, 8, _SYMBOL.size),
        (strings_at, _STRTAB, 0, 0, symbols + 2 * _SYMBOL.size, len(strings), 0, 0, 1, 0),
        # Without this section, linkers make the stack executable.
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
