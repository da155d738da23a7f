"""Mutate messages: flip, cut and splice bytes, and change single fields of protobuf messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.fuzz import wire
from tests.fuzz.wire import BYTES, FIXED64, VARINT, Field

# Mostly one: a message broken in several places is refused for the first.
CHANGED = (1, 1, 1, 2, 4)
# Longer messages only take more time.
MAX_BYTES = 256 << 10
NUMBERS = (
    *(0, 1, 127, 128, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63),
    *(-1, -2, -(2**31), -(2**63)),
)
FLOATS = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0),
    *(5e-324, 1e-12, 1e-3, 1.0, 29.5, 1e6, 1.7e308),
)

Change = Callable[[bytes, bytes, Random], bytes]
FieldChange = Callable[[Field, Random], bytes]


def mutated(data: bytes, other: bytes, rng: Random) -> bytes:
    """Return `data` after one to four random changes. Some changes insert parts of `other`."""
    for _ in range(rng.choice(CHANGED)):
        data = rng.choice(CHANGES)(data, other, rng)[:MAX_BYTES]
    return data


def _flip(data: bytes, _other: bytes, rng: Random) -> bytes:
    turned = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 8)):
        turned[rng.randrange(len(turned))] ^= 1 << rng.randrange(8)
    return bytes(turned)


def _overwrite(data: bytes, _other: bytes, rng: Random) -> bytes:
    at, length = _place(data, rng)
    return data[:at] + rng.randbytes(length) + data[at + length :]


def _insert(data: bytes, _other: bytes, rng: Random) -> bytes:
    at, _ = _place(data, rng)
    return data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:]


def _cut(data: bytes, _other: bytes, rng: Random) -> bytes:
    at, length = _place(data, rng)
    return data[:at] + data[at + length :] if rng.random() < 0.5 else data[:at]


def _repeat(data: bytes, _other: bytes, rng: Random) -> bytes:
    at, length = _place(data, rng)
    return data[:at] + data[at : at + length] * rng.choice((2, 3, 50)) + data[at + length :]


def _splice(data: bytes, other: bytes, rng: Random) -> bytes:
    return data[: _place(data, rng)[0]] + other[_place(other, rng)[0] :]


def _place(data: bytes, rng: Random) -> tuple[int, int]:
    """Return a random place in the data, and a length."""
    at = rng.randint(0, len(data))
    return at, rng.randint(0, min(len(data) - at, 32))


def _change_field(data: bytes, other: bytes, rng: Random) -> bytes:
    """Change one field, at any depth. Data that is no message has bits flipped."""
    fields = wire.read(data)
    if not fields:
        return _flip(data, other, rng)
    at = rng.randrange(len(fields))
    chosen = fields[at]
    if chosen.kind == BYTES and wire.read(chosen.value) and rng.random() < 0.7:
        changed = Field(chosen.number, BYTES, _change_field(chosen.value, other, rng)).encoded()
    else:
        changed = rng.choice(FIELD_CHANGES)(chosen, rng)
    return wire.written(fields[:at]) + changed + wire.written(fields[at + 1 :])


def _drop_field(_field: Field, _rng: Random) -> bytes:
    return b""


def _repeat_field(field: Field, rng: Random) -> bytes:
    encoded = field.encoded()
    return encoded * min(rng.choice((2, 3, 50, 1001)), MAX_BYTES // len(encoded) + 1)


def _change_number(field: Field, rng: Random) -> bytes:
    number = rng.choice((0, 1, 2, field.number + 1, 15, 16, 19_000, 2**29 - 1))
    return Field(number, field.kind, field.value).encoded()


def _change_type(field: Field, rng: Random) -> bytes:
    return wire.tag(field.number, rng.randrange(8)) + field.value


def _set_varint(field: Field, rng: Random) -> bytes:
    return Field(field.number, VARINT, wire.varint(rng.choice(NUMBERS))).encoded()


def _set_endless_varint(field: Field, _rng: Random) -> bytes:
    return Field(field.number, VARINT, b"\xff" * 11).encoded()


def _set_wrong_length(field: Field, rng: Random) -> bytes:
    length = rng.choice((0, len(field.value) + 1, 2**20, 2**31 - 1, 2**31, 2**63, 2**64 - 1))
    return wire.tag(field.number, BYTES) + wire.varint(length) + field.value


def _set_double(field: Field, rng: Random) -> bytes:
    return Field(field.number, FIXED64, struct.pack("<d", rng.choice(FLOATS))).encoded()


def _set_packed_doubles(field: Field, rng: Random) -> bytes:
    packed = b"".join(struct.pack("<d", rng.choice(FLOATS)) for _ in range(rng.choice((1, 3, 20_000))))
    return Field(field.number, BYTES, packed).encoded()


def _set_invalid_text(field: Field, rng: Random) -> bytes:
    text = rng.choice((b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\0", b"\xf0\x9f\x92", b"a\0b"))
    return Field(field.number, BYTES, text).encoded()


def _set_long_text(field: Field, rng: Random) -> bytes:
    return Field(field.number, BYTES, rng.choice((b"x", b"\xe2\x82\xac", b"[")) * 20_000).encoded()


def _nest_field(field: Field, rng: Random) -> bytes:
    value = field.value[:64]
    for _ in range(rng.choice((2, 50, 120, 1000))):
        value = Field(field.number, BYTES, value).encoded()
    return value


# Messages with one changed field get furthest, so they are drawn more often.
CHANGES: tuple[Change, ...] = (_flip, _overwrite, _insert, _cut, _repeat, _splice, *(_change_field,) * 6)
FIELD_CHANGES: tuple[FieldChange, ...] = (
    _drop_field,
    _repeat_field,
    _change_number,
    _change_type,
    _set_varint,
    _set_varint,
    _set_endless_varint,
    _set_wrong_length,
    _set_double,
    _set_packed_doubles,
    _set_invalid_text,
    _set_long_text,
    _nest_field,
)
