"""The model of a job as the compiler has it, kept because publishing needs again what intake imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.contained import try_model
from compiler.model import ExtractedTask, Model, extract_tasks, fuse, read_onnx
from records import blobs
from records.blobs import BlobNotFound
from records.database import Database
from records.jobs import JobRequest
from scheduler.errors import PermanentError
from search.device import Device


@dataclass(frozen=True)
class Prepared:
    """An imported model, fused for a target (`fused` is a TVM module), and the tasks in it."""

    model: Model
    fused: Any
    tasks: tuple[ExtractedTask, ...]


class Models:
    """Keeps the last model that was prepared: a large one takes a gigabyte."""

    def __init__(self) -> None:
        self._last: tuple[object, Prepared] | None = None

    def prepare(self, database: Database, request: JobRequest, device: Device) -> Prepared:
        """Raises ModelError when the model can't be imported or compiled, PermanentError."""
        key = (request.model_sha, tuple(sorted(request.shapes.items())), device.target)
        if self._last is None or self._last[0] != key:
            self._last = None
            self._last = (key, _prepare(_read(database, request.model_sha), request, device))
        return self._last[1]


def _read(database: Database, sha: str) -> bytes:
    try:
        with database.begin() as session:
            return blobs.get(session, sha)
    except BlobNotFound as error:
        raise PermanentError("the model's file is not stored any more: upload it again") from error


def _prepare(data: bytes, request: JobRequest, device: Device) -> Prepared:
    try_model(data, request.shapes, device.target)
    model = read_onnx(data, request.shapes)
    fused = fuse(model, device.target)
    return Prepared(model, fused, tuple(extract_tasks(fused)))
