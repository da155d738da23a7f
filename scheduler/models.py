"""The model of a job as the compiler has it, kept because publishing needs again what intake imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.model import ExtractedTask, Model, extract_tasks, fuse, read_onnx
from compiler.target import parse_target
from records import blobs
from records.database import Database
from records.jobs import JobRequest
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
        """Raises ModelError when the model can't be imported or compiled, BlobNotFound."""
        key = (request.model_sha, tuple(sorted(request.shapes.items())), device.target)
        if self._last is None or self._last[0] != key:
            self._last = None
            with database.begin() as session:
                data = blobs.get(session, request.model_sha)
            self._last = (key, _prepare(data, request, device))
        return self._last[1]


def _prepare(data: bytes, request: JobRequest, device: Device) -> Prepared:
    model = read_onnx(data, request.shapes)
    fused = fuse(model, parse_target(device.target))
    return Prepared(model, fused, tuple(extract_tasks(fused)))
