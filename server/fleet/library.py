"""A check of the libraries that builders send: the ELF header is read before a device loads the library."""

from __future__ import annotations

import struct

from core.device import processor_of

# The library is the first entry of an uncompressed tar.
_TAR_HEADER_BYTES = 512
_ELF_HEADER_BYTES = 20
_ELF_64_BIT_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_ELF_SHARED_OBJECT = 3
# ELF's numbers of the machines that libraries are linked for.
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def rejection_reason(packed: bytes, machine: str) -> str:
    """Return why a packed library can't be for this machine, as a clause; "" when it can."""
    header = packed[_TAR_HEADER_BYTES : _TAR_HEADER_BYTES + _ELF_HEADER_BYTES]
    if len(header) < _ELF_HEADER_BYTES or not header.startswith(_ELF_64_BIT_LITTLE_ENDIAN):
        return "it holds no shared library for a 64-bit machine"
    kind, number = struct.unpack_from("<HH", header, 16)
    if kind != _ELF_SHARED_OBJECT or number != _ELF_MACHINES.get(processor_of(machine)):
        return f"it holds no shared library for {machine}"
    return ""
