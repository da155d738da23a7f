"""The models of jobs: imported and compiled by children of the compiler, from the files that are stored."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.sandbox.models import ImportedModel, compile_tuned, compile_untuned, import_model
from core.device import Device
from records.jobs.jobs import JobRequest
from records.storage import blobs
from records.storage.blobs import BlobNotFound
from records.storage.database import Database
from scheduler.errors import PermanentError


class Models:
    """Remembers what is in the last model that was imported: publishing needs again what intake has seen."""

    def __init__(self) -> None:
        self._last: tuple[object, ImportedModel] | None = None

    def imported(self, database: Database, request: JobRequest, device: Device) -> ImportedModel:
        """Raises ModelError when the model can't be imported, PermanentError."""
        key = _key(request, device)
        if self._last is None or self._last[0] != key:
            data = _read(database, request.model_sha)
            self._last = (key, import_model(data, request.shapes, device.target))
        return self._last[1]

    def untuned(self, database: Database, request: JobRequest, device: Device) -> tuple[ImportedModel, bytes]:
        """What is in the model, and the library that TVM makes of it by default.

        Raises ModelError, ArtifactError when it can't be imported or compiled, PermanentError.
        """
        data = _read(database, request.model_sha)
        imported, library = compile_untuned(data, request.shapes, device.target)
        self._last = (_key(request, device), imported)
        return imported, library

    def tuned(
        self, database: Database, request: JobRequest, device: Device, schedules: Mapping[str, str]
    ) -> bytes:
        """The library with the traces of `schedules`, by workload. Raises as `untuned`."""
        return compile_tuned(_read(database, request.model_sha), request.shapes, device.target, schedules)


def _key(request: JobRequest, device: Device) -> object:
    return request.model_sha, tuple(sorted(request.shapes.items())), device.target


def _read(database: Database, sha: str) -> bytes:
    try:
        with database.begin() as session:
            return blobs.get(session, sha)
    except BlobNotFound as error:
        raise PermanentError("the model's file is not stored any more: upload it again") from error
