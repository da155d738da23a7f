"""Pack and unpack uncompressed .tar archives, the format of compiled models and candidates."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from typing import IO

from compiler.importing.spec import first_line
from core.archive_outline import MalformedArchive, check_plain_tar


class ArchiveError(ValueError):
    """The bytes are not such an archive. The message is one sentence for users."""


def write(file: IO[bytes], entries: Sequence[tuple[str, IO[bytes]]]) -> None:
    """Write an archive of files in this order. Equal contents give equal bytes. A file with a short name has
    a header of 512 bytes.
    """
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size = content.seek(0, os.SEEK_END)
            entry.mode = 0o644
            content.seek(0)
            tar.addfile(entry, content)


def pack(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """Return an archive as `write` writes it."""
    buffer = io.BytesIO()
    write(buffer, [(name, io.BytesIO(data)) for name, data in entries])
    return buffer.getvalue()


def open_entries(file: IO[bytes], limits: Mapping[str, int], what: str) -> dict[str, IO[bytes]]:
    """Open the files that `limits` names with their maximum sizes in bytes. Keep the archive open while you
    read them. Raises ArchiveError if a file is missing, too large or damaged; its message calls the archive
    `what`.
    """
    try:
        check_plain_tar(file)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            return {name: _open_entry(tar, name, limit, what) for name, limit in limits.items()}
    except (MalformedArchive, tarfile.TarError, OSError) as error:
        raise ArchiveError(f"the {what} is damaged: {first_line(error)}") from error


def unpack(data: bytes, limits: Mapping[str, int], what: str) -> dict[str, bytes]:
    """Return the contents of the files in `limits`, as `open_entries` reads them. Nothing is written to disk,
    so no name in the archive can escape a folder.
    """
    return {name: file.read() for name, file in open_entries(io.BytesIO(data), limits, what).items()}


def names(file: IO[bytes], what: str) -> list[str]:
    """Return the names of the files in an archive. Raises ArchiveError."""
    try:
        check_plain_tar(file)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            return tar.getnames()
    except (MalformedArchive, tarfile.TarError, OSError) as error:
        raise ArchiveError(f"the {what} is damaged: {first_line(error)}") from error


def _open_entry(tar: tarfile.TarFile, name: str, limit: int, what: str) -> IO[bytes]:
    try:
        entry = tar.getmember(name)
    except KeyError as error:
        raise ArchiveError(f"the {what} holds no {name}") from error
    file = tar.extractfile(entry)
    if file is None or entry.size > limit:
        raise ArchiveError(f"{name} in the {what} is no plain file of at most {limit} bytes")
    return file
