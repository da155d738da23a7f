"""Records kept beside a file of figures, one a line: what its plots are drawn from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from benchmarks.results.figures import FiguresError

Record = TypeVar("Record")


class Sidecar(Generic[Record]):
    """Files of one kind of dataclass: the records of NAME.json are in NAME.SUFFIX.jsonl."""

    def __init__(self, kind: type[Record], suffix: str) -> None:
        self._adapter: TypeAdapter[Record] = TypeAdapter(kind)
        self._suffix = suffix

    def path(self, figures: Path) -> Path:
        return figures.with_suffix(f".{self._suffix}.jsonl")

    def write(self, records: Iterable[Record], figures: Path) -> None:
        lines = [self._adapter.dump_json(record) + b"\n" for record in records]
        self.path(figures).write_bytes(b"".join(lines))

    def read(self, figures: Path) -> tuple[Record, ...]:
        """Return the records beside the file of figures, none without such a file. Raises FiguresError."""
        path = self.path(figures)
        return self.read_file(path) if path.exists() else ()

    def read_file(self, path: Path) -> tuple[Record, ...]:
        """Raises FiguresError when the file can't be read or holds anything else."""
        try:
            return tuple(map(self._adapter.validate_json, path.read_bytes().splitlines()))
        except OSError as error:
            raise FiguresError(f"{path} can't be read: {error.strerror}") from error
        except ValidationError as error:
            raise FiguresError(f"{path} holds no {self._suffix}: measure again or remove it") from error
