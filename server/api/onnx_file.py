"""A cheap check of uploaded files: does one have the outline of an ONNX model? The scheduler parses it later.

An ONNX file is one protobuf message: a sequence of fields, each a tag and a value. Reading the tags
and skipping the values finds text, archives, truncated uploads and other formats within microseconds.
"""

from __future__ import annotations

import os
from typing import IO

_GRAPH_FIELD = 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MAX_FIELDS = 100_000


def rejection_reason(file: IO[bytes]) -> str:
    """Return why the file can't be an ONNX model, in a sentence; "" when it may be one."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return "The body is empty: send the ONNX file as the request's body."
    file.seek(0)
    try:
        fields = _fields(file, size)
    except _MalformedError as error:
        return f"This is not an ONNX file: {error}."
    return "" if _GRAPH_FIELD in fields else "This is not an ONNX file: it holds no graph."


class _MalformedError(ValueError):
    """The bytes are no protobuf message."""


def _fields(file: IO[bytes], size: int) -> set[int]:
    """Return the numbers of the message's fields. Raises _MalformedError."""
    found: set[int] = set()
    for _ in range(_MAX_FIELDS):
        if file.tell() == size:
            return found
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if number == 0 or (number == _GRAPH_FIELD and kind != _BYTES):
            raise _MalformedError("its bytes follow another format")
        if kind == _VARINT:
            _varint(file)
            end = file.tell()
        elif kind == _BYTES:
            length = _varint(file)
            end = file.tell() + length
        elif kind in _WIDTHS:
            end = file.tell() + _WIDTHS[kind]
        else:
            raise _MalformedError("its bytes follow another format")
        if end > size:
            raise _MalformedError("it is cut short")
        file.seek(end)
        found.add(number)
    raise _MalformedError("its bytes follow another format")


def _varint(file: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            raise _MalformedError("it is cut short")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _MalformedError("its bytes follow another format")
