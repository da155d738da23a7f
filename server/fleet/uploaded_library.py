"""A check of the libraries that builders send, before a library is stored."""

from __future__ import annotations

import io
import struct
from tarfile import USTAR_FORMAT, TarInfo

from core.device import arch_of
from core.library_check import SymbolError, check_library

# A packed library is an uncompressed tar of these two files, followed by zeros.
_FILES = ("candidate.so", "manifest.json")
_BLOCK_BYTES = 512
_SIZE_AT, _SIZE_BYTES = 124, 12
_ELF_HEADER_BYTES = 20
_ELF_64_BIT_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_ELF_SHARED_OBJECT = 3
# The ELF numbers of the processor architectures that libraries are linked for.
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def rejection_reason(packed: bytes, platform: str) -> str:
    """Return why a device of this platform must not load a packed library, as a clause; empty if it may.

    It takes time linear in the library's size for any content.
    """
    library = _library_in(packed)
    if library is None:
        return f"it is no archive of {' and '.join(_FILES)}"
    header = library[:_ELF_HEADER_BYTES]
    if len(header) < _ELF_HEADER_BYTES or not header.startswith(_ELF_64_BIT_LITTLE_ENDIAN):
        return "it holds no shared library for a 64-bit machine"
    kind, number = struct.unpack_from("<HH", header, 16)
    if kind != _ELF_SHARED_OBJECT or number != _ELF_MACHINES.get(arch_of(platform)):
        return f"it holds no shared library for {platform}"
    try:
        check_library(io.BytesIO(library))
    except SymbolError as error:
        return str(error)
    return ""


def _library_in(packed: bytes) -> bytes | None:
    """Return the shared library in an archive; None for an archive that readers may understand differently.

    Each header must be the one that the file's name and size give, so that a device finds the same library.
    """
    place, library = 0, None
    for name in _FILES:
        start = place + _BLOCK_BYTES
        digits = packed[place + _SIZE_AT : place + _SIZE_AT + _SIZE_BYTES].strip(b"\0 ")
        if not (digits.isdigit() and digits.isascii() and not set(digits) & set(b"89")):
            return None
        entry = TarInfo(name)
        entry.size = int(digits, 8)
        end = start + entry.size
        if end > len(packed) or packed[place:start] != entry.tobuf(USTAR_FORMAT):
            return None
        if library is None:
            library = packed[start:end]
        place = end + -end % _BLOCK_BYTES
    return library if packed.count(0, place) == len(packed) - place else None
