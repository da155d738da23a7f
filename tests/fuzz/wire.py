"""Enough of protobuf's wire format to write it wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True)
class Field:
    """One field of a message: its number, its wire type, and its value without the length."""

    number: int
    kind: int
    value: bytes

    def encoded(self) -> bytes:
        length = varint(len(self.value)) if self.kind == BYTES else b""
        return tag(self.number, self.kind) + length + self.value


def varint(number: int) -> bytes:
    """Encode the number's lowest 64 bits."""
    rest, encoded = number & (1 << 64) - 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def written(fields: Iterable[Field]) -> bytes:
    return b"".join(field.encoded() for field in fields)


def read(data: bytes) -> list[Field]:
    """Return the fields of a message; none if the bytes are no message."""
    found, at = [], 0
    while at < len(data):
        head, at = _varint(data, at)
        kind = head & 7
        begin, end = _extent(data, at, kind)
        if end > len(data) or head >> 3 == 0:
            return []
        found.append(Field(head >> 3, kind, data[begin:end]))
        at = end
    return found


def _extent(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return the start and the end of the value at `at`. The end of a truncated value is beyond the data."""
    if kind == VARINT:
        return at, _varint(data, at)[1]
    if kind == BYTES:
        length, begin = _varint(data, at)
        return begin, begin + length
    return at, at + _WIDTHS.get(kind, len(data) + 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and its end, which is beyond the data if it is truncated."""
    number = 0
    for shift, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    return number, len(data) + 1
