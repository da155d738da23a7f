"""Pack a few files into an uncompressed .tar and unpack it: compiled models and candidates travel so."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence

from compiler.importing.spec import first_line


class ArchiveError(ValueError):
    """The bytes are not such an archive. The message is one sentence for the user."""


def pack(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """Pack files in this order; equal contents give equal bytes. The header of a short name has 512 bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def unpack(data: bytes, limits: Mapping[str, int], what: str) -> dict[str, bytes]:
    """Return the files named in `limits`, which maps them to their maximal size in bytes.

    Nothing is written to disk, so no name in the archive can lead out of a folder. Raises ArchiveError, whose
    message calls the archive `what`, when a file is missing, too large or damaged.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            return {name: _read_entry(tar, name, limit, what) for name, limit in limits.items()}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArchiveError(f"the {what} is damaged: {first_line(error)}") from error


def names(data: bytes, what: str) -> list[str]:
    """Return the names of the files in an archive. Raises ArchiveError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            return tar.getnames()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArchiveError(f"the {what} is damaged: {first_line(error)}") from error


def _read_entry(tar: tarfile.TarFile, name: str, limit: int, what: str) -> bytes:
    try:
        entry = tar.getmember(name)
    except KeyError as error:
        raise ArchiveError(f"the {what} holds no {name}") from error
    file = tar.extractfile(entry) if entry.isreg() else None
    if file is None or entry.size > limit:
        raise ArchiveError(f"{name} in the {what} is no plain file of at most {limit} bytes")
    content = file.read()
    if len(content) != entry.size:
        raise ArchiveError(f"the {what} is damaged: {name} is cut short")
    return content
