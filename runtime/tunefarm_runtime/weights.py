"""Read the weights of a library, at the end of its file or in the folder that all sizes of the model share.

The service's `core/library_weights.py` describes the format.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import numpy as np

from tunefarm_runtime.errors import LoadError
from tunefarm_runtime.ffi import tvm_ffi

FOLDER = "weights"
ALIGNMENT = 64
_WHOLE, _APART = b"TFWHOLE1", b"TFAPART1"
_END = struct.Struct("<8sQ")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Weight:
    """A weight of `size` bytes at `offset` in a file."""

    file: Path
    offset: int
    size: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Index:
    """The weights of a library, each with its offset in the whole file. `text` is the index as stored.

    The first `library_bytes` of the file are the ELF library.
    """

    library_bytes: int
    weights: tuple[tuple[Weight, int], ...]
    text: bytes


def read_index(library: Path) -> Index:
    """Return a library's index; it is empty if the library holds its constants itself. Raises LoadError."""
    try:
        with library.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _END.size, 0))
            end = file.read()
            if len(end) < _END.size or end[:8] not in (_WHOLE, _APART):
                return Index(size, (), b"")
            magic, length = _END.unpack(end)
            start = size - _END.size - length
            if start < 0:
                raise ValueError("the index is longer than the file")
            file.seek(start)
            text = file.read(length)
        first, *lines = text.decode().splitlines()
        library_bytes = at = int(first)
        weights = []
        for line in lines:
            name, dtype, *numbers = line.split(" ")
            offset, weight_bytes, *shape = map(int, numbers)
            is_placed = offset % ALIGNMENT == 0 and 0 <= offset - at < ALIGNMENT
            # TVM also compares the sizes, but it misses an overflow.
            is_whole = min((weight_bytes, *shape)) >= 0 and math.prod(shape) <= 8 * weight_bytes
            if not (re.fullmatch("[0-9a-f]{64}", name) and is_placed and is_whole):
                raise ValueError(f"the weight {name} has a wrong name, offset or size")
            file_offset = (library, offset) if magic == _WHOLE else (_folder(library) / name, 0)
            weights.append((Weight(*file_offset, weight_bytes, dtype, tuple(shape)), offset))
            at = offset + weight_bytes
        if not 0 <= library_bytes <= start or (magic == _WHOLE and at > start):
            raise ValueError("the file has a wrong length")
        return Index(library_bytes, tuple(weights), text)
    except OSError as error:
        raise LoadError(f"{library} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise _damaged(library) from error


def whole(library: Path) -> Iterator[bytes]:
    """Yield the bytes of a library's whole file, weights included, as the service has signed it.

    Raises LoadError, OSError.
    """
    index = read_index(library)
    yield from _pieces(library, 0, index.library_bytes)
    yield from _behind(index, lambda weight: _pieces(weight.file, weight.offset, weight.size))


def _behind(index: Index, content: Callable[[Weight], Iterable[bytes | memoryview]]) -> Iterator[Any]:
    """Yield what follows the ELF library in a whole file, given the content of each weight."""
    at = index.library_bytes
    for weight, offset in index.weights:
        yield bytes(offset - at)
        yield from content(weight)
        at = offset + weight.size
    if index.weights:
        yield index.text + _END.pack(_WHOLE, len(index.text))


def _folder(library: Path) -> Path:
    return library.parent.parent / FOLDER


def _pieces(path: Path, start: int, size: int) -> Iterator[bytes]:
    with _open(path) as file:
        file.seek(start)
        while size:
            piece = file.read(min(size, _CHUNK_BYTES))
            if not piece:
                raise _cut_short(path)
            yield piece
            size -= len(piece)


def _open(path: Path) -> BufferedReader:
    """Open a library or a weight. Raises LoadError, OSError."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise LoadError(
            f"{path} is missing: keep the folder {FOLDER} beside the folders of the sizes"
        ) from error


def changed(file: Path) -> LoadError:
    """Return the error of a file that doesn't have its signed SHA-256."""
    return LoadError(f"{file} isn't the file that was signed: download the model again")


def _damaged(library: Path) -> LoadError:
    return LoadError(f"{library} is damaged: download the model again")


def _cut_short(path: Path) -> LoadError:
    return LoadError(f"{path} is cut short: download the model again")


class MappedWeights:
    """Maps each file of weights into memory once, for all sizes of a model."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}
        self._copies: dict[Weight, Any] = {}

    def of(self, library: Path) -> list[Any]:
        """Return the weights that a library's `main` takes after the inputs. Raises LoadError."""
        return _views(library, [(weight, self._content(weight)) for weight, _ in read_index(library).weights])

    def copied(self, library: Path, signed: str, into: IO[bytes]) -> list[Any]:
        """Write a signed ELF library into a file; return copies of its weights, as `of` does.

        The copies are checked, so nobody can change them afterwards. Raises OSError, and LoadError unless the
        library with its weights has the SHA-256 `signed`.
        """
        index, digest = read_index(library), hashlib.sha256()
        # Copies that were checked with another size are shared.
        copies = {weight: self._copies.get(weight) for weight, _ in index.weights}

        def content(weight: Weight) -> Iterator[memoryview]:
            copy = copies[weight]
            if copy is None:
                copy = copies[weight] = _copy(weight)
            yield copy.data

        for piece in _pieces(library, 0, index.library_bytes):
            digest.update(piece)
            into.write(piece)
        for piece in _behind(index, content):
            digest.update(piece)
        into.flush()
        if digest.hexdigest() != signed:
            raise changed(library)
        self._copies |= copies
        return _views(library, [(weight, _aligned(copies[weight])) for weight, _ in index.weights])

    def _content(self, weight: Weight) -> Any:
        mapped = self._files.get(weight.file)
        if mapped is None:
            try:
                with _open(weight.file) as file:
                    # DLPack accepts only writable memory. Private pages are shared until a process writes.
                    mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
            except (OSError, ValueError) as error:
                raise LoadError(f"{weight.file} can't be read: {error}") from error
            self._files[weight.file] = mapped
        if weight.offset + weight.size > mapped.size:
            raise _cut_short(weight.file)
        return _aligned(mapped[weight.offset : weight.offset + weight.size])


def _copy(weight: Weight) -> Any:
    """Return a copy of a weight, in memory that begins at a page. Forks share it until one writes to it.

    Raises LoadError, OSError.
    """
    with _open(weight.file) as file:
        if weight.offset + weight.size > os.fstat(file.fileno()).st_size:
            raise _cut_short(weight.file)
        memory = mmap.mmap(-1, max(weight.size, 1), flags=mmap.MAP_PRIVATE)
        copy = np.frombuffer(memory, np.uint8)[: weight.size]
        file.seek(weight.offset)
        if file.readinto(copy.data) < weight.size:
            raise _cut_short(weight.file)
    return copy


def _aligned(content: Any) -> Any:
    return tvm_ffi.from_dlpack(content, require_alignment=ALIGNMENT)


def _views(library: Path, contents: Sequence[tuple[Weight, Any]]) -> list[Any]:
    """Return weights as tensors of their types and shapes. Raises LoadError."""
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    try:
        return [
            view(content, tvm_ffi.Shape(weight.shape), tvm_ffi.dtype(weight.dtype), 0)
            for weight, content in contents
        ]
    except ValueError as error:  # an unknown type, or a shape that takes more bytes
        raise _damaged(library) from error
