"""Read the weights of a library, at the end of its file or in the folder that all sizes of the model share.

The service's `core/library_weights.py` describes the format.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    at = index.library_bytes
    for weight, offset in index.weights:
        yield bytes(offset - at)
        yield from _pieces(weight.file, weight.offset, weight.size)
        at = offset + weight.size
    if index.weights:
        yield index.text + _END.pack(_WHOLE, len(index.text))


def _folder(library: Path) -> Path:
    return library.parent.parent / FOLDER


def _pieces(path: Path, start: int, size: int) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise _missing(path) from error
    with file:
        file.seek(start)
        while size:
            piece = file.read(min(size, _CHUNK_BYTES))
            if not piece:
                raise LoadError(f"{path} is cut short: download the model again")
            yield piece
            size -= len(piece)


def _damaged(library: Path) -> LoadError:
    return LoadError(f"{library} is damaged: download the model again")


def _missing(path: Path) -> LoadError:
    return LoadError(f"{path} is missing: keep the folder {FOLDER} beside the folders of the sizes")


class MappedWeights:
    """Maps each file of weights into memory once, for all sizes of a model."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}

    def of(self, library: Path) -> list[Any]:
        """Return the weights that a library's `main` takes after the inputs. Raises LoadError."""
        view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
        weights = [(weight, self._content(weight)) for weight, _ in read_index(library).weights]
        try:
            return [
                view(content, tvm_ffi.Shape(weight.shape), tvm_ffi.dtype(weight.dtype), 0)
                for weight, content in weights
            ]
        except ValueError as error:  # an unknown type, or a shape that takes more bytes
            raise _damaged(library) from error

    def _content(self, weight: Weight) -> Any:
        mapped = self._files.get(weight.file)
        if mapped is None:
            try:
                with weight.file.open("rb") as file:
                    # DLPack accepts only writable memory. Private pages are shared until a process writes.
                    mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
            except FileNotFoundError as error:
                raise _missing(weight.file) from error
            except (OSError, ValueError) as error:
                raise LoadError(f"{weight.file} can't be read: {error}") from error
            self._files[weight.file] = mapped
        if weight.offset + weight.size > mapped.size:
            raise LoadError(f"{weight.file} is cut short: download the model again")
        content = mapped[weight.offset : weight.offset + weight.size]
        return tvm_ffi.from_dlpack(content, require_alignment=ALIGNMENT)
