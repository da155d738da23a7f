"""Pack a model to upload: its file, or for ONNX with weights in other files a tar of all of them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from core.model_format import MalformedMessage, ModelFormat, UnknownFormat, external_files, recognise

CHUNK_BYTES = 1 << 20


class FileCutShort(ValueError):
    """A file became shorter while it was read."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} became shorter while it was read: wait until it is written")


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model, the model's own first: their paths relative to it, their paths, and their sizes.

    Bytes that are appended later don't count.
    """

    files: tuple[tuple[str, Path, int], ...]

    @classmethod
    def of(cls, model: Path) -> ModelFiles:
        """Return the files of a model.

        A stranger's model may name any file as its weights. Raises ValueError if it names files outside its
        folder or hidden ones, or uses only a part of a file. Raises OSError if a file can't be read.
        """
        names: dict[str, list[tuple[int, int]]] = {}
        with model.open("rb") as file:
            try:
                if recognise(file) is ModelFormat.ONNX:
                    names = external_files(file)
            except (UnknownFormat, MalformedMessage):
                pass  # the service reports the error
        # A cache of downloads may link the model and its weights into one folder.
        folders = {model.parent.resolve(), model.resolve().parent}
        for name in names:
            path, target = PurePosixPath(name), (model.parent / name).resolve()
            is_beside = any(target.is_relative_to(folder) for folder in folders)
            if path.is_absolute() or not is_beside or any(part.startswith(".") for part in path.parts):
                raise ValueError(
                    f"{model.name} keeps weights in {name}, which is not beside it or is hidden: "
                    "export it again"
                )
            _check_covered(model, name, names[name])
        paths = ((model.name, model), *((name, model.parent / name) for name in names))
        return cls(tuple((name, path, path.stat().st_size) for name, path in paths))

    @property
    def size(self) -> int:
        """The size of the upload in bytes."""
        if len(self.files) == 1:
            return self.files[0][2]
        return sum(len(header) + size + padding for header, size, padding, _ in self._entries())

    def chunks(self) -> Iterator[bytes]:
        """Yield the upload's chunks. The same files give the same bytes. Raises OSError and FileCutShort."""
        if len(self.files) == 1:
            yield from chunks_of(*self.files[0][1:])
            return
        for header, size, padding, path in self._entries():
            yield header
            yield from chunks_of(path, size)
            yield bytes(padding)

    def _entries(self) -> Iterator[tuple[bytes, int, int, Path]]:
        """Yield each file's tar header, its size, the number of padding bytes, and its path."""
        for number, (name, path, size) in enumerate(self.files):
            # The model comes first, because the service finds it by its suffix.
            entry = tarfile.TarInfo(name if number or name.endswith(".onnx") else f"{name}.onnx")
            entry.size, entry.mode = size, 0o644
            is_last = number == len(self.files) - 1
            end = 2 * tarfile.BLOCKSIZE if is_last else 0
            yield entry.tobuf(tarfile.GNU_FORMAT), entry.size, -entry.size % tarfile.BLOCKSIZE + end, path


def _check_covered(model: Path, name: str, tensors: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError unless a model's tensors cover a file of weights, except for zeros between them.

    `tensors` are the start and end of each tensor in the file.
    """
    with (model.parent / name).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        covered = 0
        for start, end in [*sorted(tensors), (size, size)]:
            if end > size:
                raise ValueError(
                    f"{name} has {size:,} bytes, but the weights of {model.name} end at {end:,}: copy or "
                    "export it again"
                )
            file.seek(covered)
            while covered < start:
                gap = file.read(min(CHUNK_BYTES, start - covered))
                if not gap:
                    raise FileCutShort(name)
                if any(gap):
                    raise ValueError(
                        f"{name} has data that {model.name} doesn't use, so it isn't sent: save the model "
                        "with its own file of weights by onnx.save(..., save_as_external_data=True)"
                    )
                covered += len(gap)
            covered = max(covered, end)


def chunks_of(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file. Raises OSError and FileCutShort."""
    with path.open("rb") as file:
        while size > 0:
            chunk = file.read(min(CHUNK_BYTES, size))
            if not chunk:
                raise FileCutShort(path.name)
            yield chunk
            size -= len(chunk)
