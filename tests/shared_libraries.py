"""Small handwritten shared libraries for 64-bit loaders."""

from __future__ import annotations

import struct
from collections.abc import Sequence

X86_64, AARCH64 = 62, 183
_HEADER_BYTES, _SEGMENT_BYTES = 64, 56


def shared_library(
    names: Sequence[str] = ("memcpy",),
    machine: int = X86_64,
    tags: Sequence[tuple[int, int]] = (),
    needed: Sequence[str] = (),
    relocations: Sequence[tuple[int, int, int]] | None = None,
) -> bytes:
    """Return a library that imports functions of these names. Its dynamic section also has `tags` and
    `needed` libraries. `relocations` replaces the default of one for each name.
    """
    if relocations is None:
        relocations = [(0x100000 + 8 * number, number << 32 | 6, 0) for number in range(1, len(names) + 1)]
    strings, places = b"\0", []
    for name in (*names, *needed):
        places.append(len(strings))
        strings += name.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", place, 0x12, 0, 0, 0, 0) for place in places[: len(names)]
    )
    relocated = b"".join(struct.pack("<QQq", *one) for one in relocations)
    strings_at = _HEADER_BYTES + 2 * _SEGMENT_BYTES
    symbols_at = strings_at + len(strings)
    relocated_at = symbols_at + len(symbols)
    dynamic_at = relocated_at + len(relocated)
    entries = [
        *((1, place) for place in places[len(names) :]),
        *((5, strings_at), (6, symbols_at), (7, relocated_at), (8, len(relocated)), (10, len(strings))),
        *tags,
        (0, 0),
    ]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    segments = _segment(1, 0, size) + _segment(2, dynamic_at, len(dynamic))
    header = struct.pack(
        "<16s2HI3QI6H",
        *(b"\x7fELF\x02\x01\x01", 3, machine, 1, 0, _HEADER_BYTES, 0, 0),
        *(_HEADER_BYTES, _SEGMENT_BYTES, 2, 0, 0, 0),
    )
    return header + segments + strings + symbols + relocated + dynamic


def _segment(kind: int, start: int, size: int) -> bytes:
    return struct.pack("<2I6Q", kind, 4, start, start, start, size, size, 0x1000)
