"""Import and compile the stored models of jobs in child processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from typing import IO

from compiler.children import models
from compiler.children.batch_shapes import find_batch_shapes
from compiler.children.child import import_memory_bytes
from compiler.children.inference import check_inputs, compare_outputs
from compiler.children.models import ImportedModel
from compiler.children.outlines import outline_model
from compiler.children.quantization import quantize_model
from compiler.children.traces import check_traces
from compiler.children.verification import Verification, verify_import
from compiler.importing.spec import KEEP_AS_FUNCTION, ModelError, Shape
from core.device import Device
from core.inference import Comparison
from core.model_outline import ModelOutline
from core.quantization import Quantization
from records.jobs import quantized_models
from records.jobs.jobs import JobRequest
from records.storage import blobs
from records.storage.blobs import BlobNotFound
from records.storage.database import Database
from scheduler.errors import PermanentError
from system import tracing
from system.memory import usable_memory_bytes

MODEL_GONE = "the model's file is no longer stored: upload it again"
DATA_GONE = "the calibration data is no longer stored: upload it again"
# Returns the problem of each pair of a workload and a trace for a target; "" for a valid pair.
CheckTraces = Callable[[Sequence[tuple[str, str]], str], list[str]]


@dataclass(frozen=True)
class CompilerChildren:
    """The functions that run the compiler in child processes. Tests replace them."""

    import_model: Callable[..., ImportedModel] = models.import_model
    compile_untuned: Callable[..., ImportedModel] = models.compile_untuned
    compile_tuned: Callable[..., object] = models.compile_tuned
    find_batch_shapes: Callable[[IO[bytes], Mapping[str, Shape], int], dict[str, Shape]] = find_batch_shapes
    verify_import: Callable[[IO[bytes], Mapping[str, Shape], str], Verification] = verify_import
    check_traces: CheckTraces = check_traces
    quantize_model: Callable[..., Quantization] = quantize_model
    check_inputs: Callable[..., None] = check_inputs
    compare_outputs: Callable[..., Comparison] = compare_outputs
    outline_model: Callable[[IO[bytes]], ModelOutline] = outline_model


class ModelCompiler:
    """Imports and compiles the models of jobs, or their quantized forms, for device classes. Every method
    raises ModelError if the model can't be imported, and PermanentError if its file is gone. Methods that
    compile raise ArtifactError if that fails. The last imported model is cached, because publishing needs it
    again.
    """

    def __init__(self, database: Database, children: CompilerChildren) -> None:
        self._database = database
        self._children = children
        self._last: tuple[object, ImportedModel] | None = None

    def batch_shapes(self, request: JobRequest) -> dict[str, Shape]:
        """Return the shapes of the inputs with the request's batch size. Raises ModelError if the inputs have
        no batch dimension.
        """
        assert request.batch is not None, "it was asked for"
        with self.stored(request.model_sha, MODEL_GONE) as file:
            return self._children.find_batch_shapes(file, request.shapes, request.batch)

    def quantize(self, request: JobRequest, device: Device, into: IO[bytes]) -> Quantization:
        """Write the quantized form of the model that a request asks for to an empty file; return how accurate
        it is."""
        narrow = quantized_models.wants_narrow_weights(request, device)
        data = nullcontext() if request.calibration is None else self.stored(request.calibration, DATA_GONE)
        with tracing.span("quantize"), self.stored(request.model_sha, MODEL_GONE) as file, data as samples:
            return self._children.quantize_model(
                file, request.shapes, request.quantize, samples, into, narrow=narrow
            )

    def import_model(self, request: JobRequest, device: Device) -> ImportedModel:
        key, last = _key(request, device), self._last  # read once, because another thread imports, too
        if last is not None and last[0] == key:
            return last[1]
        with tracing.span("import model"), self._file(request, device) as file:
            imported = self._children.import_model(file, request.shapes, device.target, tf32=request.tf32)
        self._last = (key, imported)
        return imported

    def compile_untuned(
        self, request: JobRequest, device: Device, library: IO[bytes]
    ) -> tuple[ImportedModel, Verification]:
        """Return the imported model, and the result of its comparison with the file. Write the untuned
        library to a file. Raises ModelError also if the imported model's outputs differ from the file's, and
        for a decoder that was rewritten to keep its cache but can't be compared.
        """

        def compile_and_keep(file: IO[bytes]) -> ImportedModel:
            with tracing.span("import and compile untuned"):
                imported = self._children.compile_untuned(
                    file, request.shapes, device.target, library, tf32=request.tf32
                )
            self._last = (_key(request, device), imported)
            return imported

        def verify(file: IO[bytes]) -> Verification:
            with tracing.span("verify import"):
                return self._children.verify_import(file, request.shapes, device.target)

        with self._file(request, device) as file:
            size = os.fstat(file.fileno()).st_size
            if 2 * import_memory_bytes(size) > usable_memory_bytes():
                return _compared(compile_and_keep(file), verify(file))
        # Each of the two processes uses one core, and has its own descriptor and so its own file position.
        opened = self._file(request, device), self._file(request, device)
        with opened[0] as file, opened[1] as other, ThreadPoolExecutor(1) as beside:
            verifying = beside.submit(copy_context().run, verify, other)
            return _compared(compile_and_keep(file), verifying.result())

    def compile_tuned(
        self, request: JobRequest, device: Device, traces: Mapping[str, str], library: IO[bytes]
    ) -> None:
        """Write the library with schedules from `traces`, which maps workload hashes to traces, to a file."""
        with tracing.span("compile tuned"), self._file(request, device) as file:
            self._children.compile_tuned(
                file, request.shapes, device.target, traces, library, tf32=request.tf32
            )

    @contextmanager
    def _file(self, request: JobRequest, device: Device) -> Iterator[IO[bytes]]:
        """Yield the file of the model that is compiled."""
        with self._database.reading() as session:
            sha = quantized_models.file_sha(session, request, device)
        with self.stored(sha, MODEL_GONE) as file:
            yield file

    @contextmanager
    def stored(self, sha: str, when_gone: str) -> Iterator[IO[bytes]]:
        """Yield a stored file, written to disk a chunk at a time. Raises PermanentError when it is gone."""
        with tempfile.TemporaryFile() as file:
            try:
                with self._database.reading() as session:
                    for chunk in blobs.chunks(session, sha):
                        file.write(chunk)
            except BlobNotFound as error:
                raise PermanentError(when_gone) from error
            file.flush()
            yield file


def _compared(imported: ImportedModel, verification: Verification) -> tuple[ImportedModel, Verification]:
    """Return the arguments. Raises ModelError for a rewritten decoder that was not compared with its file."""
    if imported.cache is not None and verification.unverified:
        raise ModelError(
            "the decoder, rewritten to keep its cache in place, can't be compared with its file "
            f"({verification.unverified}): {KEEP_AS_FUNCTION}"
        )
    return imported, verification


def _key(request: JobRequest, device: Device) -> object:
    form = (request.model_sha, request.quantize, request.calibration)
    return form, tuple(sorted(request.shapes.items())), device.target, request.tf32
