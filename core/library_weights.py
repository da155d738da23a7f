"""Read and write a compiled model's large weights, at the end of its library's file or in separate files.

The service stores a whole file. Sizes that share weights have separate files of weights:

    whole:     ELF library, (zeros, weight) ..., index, WHOLE, length of the index
    separate:  ELF library, index, APART, length of the index

The library's `main` takes the weights after the inputs, in the order of the index. In a whole file, each
weight begins at a multiple of ALIGNMENT bytes. Separate weights are files in a folder, named by SHA-256.
A library without an index holds all of its constants itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

# The name of the folder with separate weights, beside the folders of the sizes.
FOLDER = "weights"
ALIGNMENT = 64
MAX_INDEX_BYTES = 16 << 20
MAX_RANK = 16
WHOLE, APART = b"TFWHOLE1", b"TFAPART1"
_END = struct.Struct("<8sQ")
_CHUNK_BYTES = 1 << 20
# The name of a weight's file, or of a temporary file of a process that was killed.
_KEPT_NAME = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.new")


class WeightsError(ValueError):
    """A library's weights or their index are damaged. The message is one sentence for the user."""


@dataclass(frozen=True)
class Weight:
    """A weight of `size` bytes at `offset` in the whole file. `dtype` is TVM's name of its element type."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int

    def __post_init__(self) -> None:
        is_named = re.fullmatch("[0-9a-f]{64}", self.sha256) and re.fullmatch("[a-z][a-z0-9_]*", self.dtype)
        numbers = (*self.shape, self.offset, self.size)
        if not is_named or len(self.shape) > MAX_RANK or not all(0 <= n < 1 << 62 for n in numbers):
            raise ValueError("the description of a weight is invalid")


@dataclass(frozen=True)
class Index:
    """The weights of a library. The first `library_bytes` of its file are the ELF library."""

    library_bytes: int
    weights: tuple[Weight, ...]
    is_apart: bool = False

    def to_bytes(self) -> bytes:
        """Return the end of the file: the index, its mark and its length."""
        rows = [(one.sha256, one.dtype, one.offset, one.size, *one.shape) for one in self.weights]
        lines = [str(self.library_bytes), *(" ".join(map(str, row)) for row in rows)]
        text = "".join(f"{line}\n" for line in lines).encode()
        return text + _END.pack(APART if self.is_apart else WHOLE, len(text))


def read_index(file: IO[bytes]) -> Index:
    """Return a library's index, which is empty if the file has no weights. Raises WeightsError."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _END.size, 0))
    end = file.read(_END.size)
    if len(end) < _END.size or end[:8] not in (WHOLE, APART):
        return Index(size, ())
    magic, length = _END.unpack(end)
    start = size - _END.size - length
    try:
        if length > MAX_INDEX_BYTES or start < 0:
            raise ValueError("its length is impossible")
        file.seek(start)
        first, *lines = file.read(length).decode().splitlines()
        weights = []
        for line in lines:
            sha256, dtype, *numbers = line.split(" ")
            offset, weight_bytes, *shape = map(int, numbers)
            weights.append(Weight(sha256, dtype, tuple(shape), offset, weight_bytes))
        index = Index(int(first), tuple(weights), magic == APART)
        _check_places(index, start)
    except ValueError as error:
        raise WeightsError(
            f"the index of the library's weights is damaged ({error}): download the model again"
        ) from error
    return index


def _check_places(index: Index, end: int) -> None:
    """Raise ValueError unless the weights follow one another between the library and the index."""
    at = index.library_bytes
    for weight in index.weights:
        if weight.offset != aligned(at):
            raise ValueError("a weight doesn't begin where the previous one ends")
        at = weight.offset + weight.size
    if not 0 < index.library_bytes <= end or (at != end and not index.is_apart):
        raise ValueError("the file has a wrong length")


def aligned(offset: int) -> int:
    """Return the offset, rounded up to a multiple of ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def append(library: Path, weights: Sequence[tuple[str, tuple[int, ...], memoryview]]) -> None:
    """Append weights, given as types, shapes and contents, to an ELF library's file, and then their index."""
    with library.open("r+b") as file:
        library_bytes = file.seek(0, os.SEEK_END)
        described = []
        for dtype, shape, content in weights:
            file.write(bytes(aligned(file.tell()) - file.tell()))
            digest = hashlib.sha256(content).hexdigest()
            described.append(Weight(digest, dtype, shape, file.tell(), content.nbytes))
            file.write(content)
        file.write(Index(library_bytes, tuple(described)).to_bytes())


def set_apart(library: Path, folder: Path) -> None:
    """Move the weights of a library to separate files in a folder. Existing files stay.

    Raises WeightsError if a weight is damaged; OSError.
    """
    with library.open("rb") as file:
        index = read_index(file)
        if index.is_apart or not index.weights:
            return
        folder.mkdir(exist_ok=True)
        for weight in index.weights:
            file.seek(weight.offset)
            _keep(file, weight, folder)
        file.seek(0)
        fresh = library.with_name(f".{library.name}.new")
        with fresh.open("wb") as apart:
            _copy(file, index.library_bytes, apart)
            apart.write(Index(index.library_bytes, index.weights, is_apart=True).to_bytes())
    fresh.replace(library)


def remove_unused(folder: Path) -> None:
    """Delete the files in a folder of weights that no library in the folders beside it uses.

    Files with other names stay. If a library is damaged, its weights are unknown, so nothing is deleted.
    Raises OSError.
    """
    used = set()
    try:
        for library in folder.parent.glob("*/model.so"):
            with library.open("rb") as file:
                used |= {weight.sha256 for weight in read_index(file).weights}
    except WeightsError:
        return
    for kept in folder.glob("*"):
        if _KEPT_NAME.fullmatch(kept.name) and kept.name not in used:
            kept.unlink(missing_ok=True)


def open_whole(library: Path) -> IO[bytes]:
    """Open a library's file for reading. If its weights are separate, open a temporary whole copy.

    Raises WeightsError, OSError.
    """
    file = library.open("rb")
    index = read_index(file)
    file.seek(0)
    if not index.is_apart:
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with file:
        _copy(file, index.library_bytes, copy)
    for weight in index.weights:
        copy.write(bytes(weight.offset - copy.tell()))
        with (library.parent.parent / FOLDER / weight.sha256).open("rb") as kept:
            _copy(kept, weight.size, copy)
    copy.write(replace(index, is_apart=False).to_bytes())
    copy.flush()
    copy.seek(0)
    return copy


def _keep(file: IO[bytes], weight: Weight, folder: Path) -> None:
    """Write a weight to its file in a folder, unless the file exists and is whole."""
    kept = folder / weight.sha256
    if kept.exists():
        with kept.open("rb") as stored:
            if hashlib.file_digest(stored, "sha256").hexdigest() == weight.sha256:
                return
    fresh = folder / f".{weight.sha256}.new"
    with fresh.open("wb") as copy:
        digest = _copy(file, weight.size, copy)
    if digest != weight.sha256:
        fresh.unlink()
        raise WeightsError("a weight doesn't have its SHA-256 from the index: download the model again")
    fresh.replace(kept)


def _copy(source: IO[bytes], size: int, target: IO[bytes]) -> str:
    """Copy bytes, and return their SHA-256."""
    digest = hashlib.sha256()
    while size:
        chunk = source.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise WeightsError("the library's file is cut short: download the model again")
        digest.update(chunk)
        target.write(chunk)
        size -= len(chunk)
    return digest.hexdigest()
