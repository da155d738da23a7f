"""The names in a tar or zip archive, read from its headers by hand.

Archives are untrusted, and a server reads them in its own process. For any headers, each function reads a
bounded number of bytes in linear time. No file is unpacked.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import IO

_BLOCK_BYTES = 512
# The most headers before a file: one for a long name, one for a long link, and pax attributes.
_MAX_TAR_HEADERS = 8
_MAX_TAR_EXTENSION_BYTES = 64 << 10
_MAX_TAR_FILES = 1000
_TAR_FILES, _TAR_PAX, _TAR_LONG_NAME, _TAR_LONG_LINK = (b"0", b"\0", b"7"), (b"x", b"g", b"X"), b"L", b"K"
_USTAR = b"ustar\0"
_PLAIN_SIZE = re.compile(rb"[0-7]{11}\0")

_ZIP_END, _ZIP_END_64, _ZIP_LOCATOR_64, _ZIP_ENTRY = (
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"PK\x01\x02",
)
_ZIP_END_BYTES, _ZIP_END_64_BYTES, _ZIP_LOCATOR_BYTES, _ZIP_ENTRY_BYTES = 22, 56, 20, 46
_MAX_ZIP_COMMENT_BYTES = 65535
# An exported program has an entry of about 150 bytes for each weight.
_MAX_ZIP_ENTRIES = 100_000
_MAX_ZIP_DIRECTORY_BYTES = 32 << 20


class MalformedArchive(ValueError):
    """The bytes aren't an archive that this module can read. The message is a clause without a full stop."""


def first_tar_name(file: IO[bytes]) -> str | None:
    """Return the name of the first entry of a tar if it is a plain file, otherwise None.

    Reads ustar headers, GNU's long names and pax attributes. Raises MalformedArchive.
    """
    file.seek(0)
    long_name: bytes | None = None
    for _ in range(_MAX_TAR_HEADERS):
        header = file.read(_BLOCK_BYTES)
        _check_header(header)
        if header == bytes(_BLOCK_BYTES):
            return None
        kind = header[156:157]
        if kind not in (*_TAR_PAX, _TAR_LONG_NAME, _TAR_LONG_LINK):
            if kind not in _TAR_FILES:
                return None
            name = header[:100].partition(b"\0")[0]
            prefix = header[345:500].partition(b"\0")[0] if header[257:263] == _USTAR else b""
            name = long_name if long_name is not None else b"/".join(filter(None, (prefix, name)))
            return name.decode(errors="replace")
        size = _octal(header[124:136])
        if size > _MAX_TAR_EXTENSION_BYTES:
            raise MalformedArchive(f"a name in it takes more than {_MAX_TAR_EXTENSION_BYTES} bytes")
        data = file.read(size)
        file.seek(-size % _BLOCK_BYTES, os.SEEK_CUR)
        if len(data) < size:
            raise MalformedArchive("it is cut short")
        if kind == _TAR_LONG_NAME:
            long_name = data.partition(b"\0")[0]
        elif kind in _TAR_PAX:
            long_name = _pax_path(data) or long_name
    raise MalformedArchive("its first file has too many headers")


def check_plain_tar(file: IO[bytes]) -> None:
    """Raise MalformedArchive unless a tar has only plain files, each with one ustar header.

    Such a tar is safe to read with the standard library, whose regular expressions for pax attributes may
    take hours.
    """
    file_bytes, at = file.seek(0, os.SEEK_END), 0
    for _ in range(_MAX_TAR_FILES + 1):
        file.seek(at)
        header = file.read(_BLOCK_BYTES)
        _check_header(header)
        if header == bytes(_BLOCK_BYTES):
            file.seek(0)
            return
        # Other parsers may read other kinds and other forms of a number differently, and continue elsewhere.
        if header[156:157] != b"0" or not _PLAIN_SIZE.fullmatch(header[124:136]):
            raise MalformedArchive("it has more than plain files")
        size = _octal(header[124:136])
        at += _BLOCK_BYTES + size + -size % _BLOCK_BYTES
        if at > file_bytes:
            raise MalformedArchive("it is cut short")
    raise MalformedArchive(f"it has more than {_MAX_TAR_FILES} files")


def _check_header(header: bytes) -> None:
    """Raise MalformedArchive unless a tar header is whole and has its checksum, or marks the tar's end."""
    if len(header) < _BLOCK_BYTES:
        raise MalformedArchive("it is cut short")
    # The checksum's own field counts as spaces.
    right = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if header != bytes(_BLOCK_BYTES) and _octal(header[148:156]) != right:
        raise MalformedArchive("a header's checksum is wrong")


def _octal(field: bytes) -> int:
    digits = field.strip(b"\0 ")
    if not digits.isdigit():
        raise MalformedArchive("a number in a header is not octal")
    try:
        return int(digits, 8)
    except ValueError as error:
        raise MalformedArchive("a number in a header is not octal") from error


def _pax_path(data: bytes) -> bytes | None:
    """Return the attribute "path" of pax attributes, each "LENGTH KEY=VALUE" and a line feed."""
    path, start = None, 0
    while start < len(data) and data[start] != 0:
        # Within the limit of bytes, a length has at most six digits.
        digits, blank, _ = data[start : start + 7].partition(b" ")
        if not blank or not digits.isdigit():
            raise MalformedArchive("its pax attributes make no sense")
        end = start + int(digits)
        key, equals, value = data[start + len(digits) + 1 : end].partition(b"=")
        if end > len(data) or not equals or not value.endswith(b"\n"):
            raise MalformedArchive("its pax attributes make no sense")
        if key == b"path":
            path = value[:-1]
        start = end
    return path


def zip_names(file: IO[bytes]) -> Iterator[str]:
    """Yield the names in a zip archive's directory. Raises MalformedArchive."""
    entries, size, start = _zip_directory(file)
    if entries > _MAX_ZIP_ENTRIES or size > _MAX_ZIP_DIRECTORY_BYTES:
        mib = _MAX_ZIP_DIRECTORY_BYTES >> 20
        raise MalformedArchive(f"its directory has more than {_MAX_ZIP_ENTRIES} entries or {mib} MiB")
    end = start + size
    file.seek(start)
    for _ in range(entries):
        header = file.read(_ZIP_ENTRY_BYTES)
        if len(header) < _ZIP_ENTRY_BYTES or not header.startswith(_ZIP_ENTRY):
            raise MalformedArchive("its directory is damaged")
        name_bytes, *others = struct.unpack_from("<3H", header, 28)
        name = file.read(name_bytes)
        file.seek(sum(others), os.SEEK_CUR)
        if len(name) < name_bytes or file.tell() > end:
            raise MalformedArchive("its directory is damaged")
        yield name.decode(errors="replace")
    if file.tell() != end:
        raise MalformedArchive("its directory is damaged")


def _zip_directory(file: IO[bytes]) -> tuple[int, int, int]:
    """Return a zip directory's number of entries, its bytes, and where it begins. Raises MalformedArchive."""
    file.seek(0, os.SEEK_END)
    file_bytes = file.tell()  # before Python 3.13, seek() of a mapped file returns None
    tail_at = max(file_bytes - _ZIP_END_BYTES - _MAX_ZIP_COMMENT_BYTES, 0)
    file.seek(tail_at)
    tail = file.read()
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) - at < _ZIP_END_BYTES:
        raise MalformedArchive("it has no directory")
    end_at = tail_at + at
    entries, size, start = struct.unpack_from("<HII", tail, at + 10)
    directory_end = end_at
    file.seek(max(end_at - _ZIP_LOCATOR_BYTES, 0))
    locator = file.read(_ZIP_LOCATOR_BYTES)
    if locator.startswith(_ZIP_LOCATOR_64):
        (directory_end,) = struct.unpack_from("<Q", locator, 8)
        if directory_end + _ZIP_END_64_BYTES > end_at:
            raise MalformedArchive("its directory is damaged")
        file.seek(directory_end)
        record = file.read(_ZIP_END_64_BYTES)
        if not record.startswith(_ZIP_END_64):
            raise MalformedArchive("its directory is damaged")
        entries, size, start = struct.unpack_from("<QQQ", record, 32)
    if start + size != directory_end:
        raise MalformedArchive("its directory is damaged")
    return entries, size, start
