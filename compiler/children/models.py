"""Import and compile an untrusted model in a child process (`compiler.children.child` says why).

The child replies with a line of JSON about the imported model, a line with the library's size, and the
library. A child that dies after the first line died during compilation.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec

from compiler import fallback
from compiler.children.child import (
    MAX_REPLY_BYTES,
    TOO_MUCH_MEMORY,
    crashed,
    describe_error,
    describe_exit,
    import_memory_bytes,
    run_on_model,
    serve,
    size_of,
    write_line,
)
from compiler.children.linking import linker_seed
from compiler.importing.failing_node import failing_binding_error, failing_node_error
from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.model_file import ModelFile
from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.formats.reading import read_model
from compiler.importing.formats.stablehlo_model import StablehloModel
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.importing.model import ExtractedTask, RelaxModel, fuse, fuse_untuned
from compiler.importing.node_names import readable
from compiler.importing.spec import CacheSpec, CompileError, ModelError, Shape, TensorSpec
from compiler.packaging.artifact import (
    LIBRARY,
    ArtifactError,
    build_library,
    build_scheduled,
    schedule_module,
)
from compiler.precision.half import count_products
from compiler.target import parse_target
from compiler.variants.choice import VariantModel
from core.library_check import SymbolError, check_library
from sandbox.limits import data_bytes, limit_memory
from system.memory import usable_memory_bytes

# LLVM's memory grows with the number of kernels, not with the size of the file.
BUILD_MEMORY_BYTES = 8 << 30
# Libraries hold the weights, and some weights twice.
LIBRARY_PER_MODEL_BYTE = 4
MAX_PROBLEM_CHARS = 8192
MAX_MODEL_BYTES = 16 << 30
MAX_CALLS, MAX_OPERANDS = 1 << 30, 1 << 16
_TYPE_NAME = re.compile(r"[a-z][a-z0-9_]{1,31}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompileLimits:
    """Time limits of an import and of a compilation in seconds. `memory_bytes` limits the memory of each, on
    top of a process with TVM; the default depends on the model's size.
    """

    import_s: float = 300.0
    build_s: float = 1200.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.import_s <= 0 or self.build_s <= 0:
            raise ValueError(f"time limits must be positive, not {self.import_s} and {self.build_s}")

    def import_bytes(self, request: CompileRequest) -> int:
        return self.memory_bytes or import_memory_bytes(request.size)

    def build_bytes(self, request: CompileRequest) -> int:
        return self.memory_bytes or import_memory_bytes(request.size) + BUILD_MEMORY_BYTES

    def secs_for(self, request: CompileRequest) -> float:
        return self.import_s + (self.build_s if request.library is not LibraryKind.NONE else 0.0)


class LibraryKind(StrEnum):
    """The library to compile: none, the untuned model, or kernels with schedules. The untuned model is TVM's
    default, except for slow loop nests.
    """

    NONE = "none"
    UNTUNED = "untuned"
    TUNED = "tuned"


@dataclass(frozen=True)
class CompileRequest:
    """A model's file, the shapes of its dynamic inputs, a target, and the library to compile.

    `schedules` maps workload hashes to traces. A workload without a trace gets the fallback schedule. A
    variant with a trace replaces its base workload. `tf32` adds variants that compute in TF32.
    """

    data: bytes | IO[bytes]
    shapes: Mapping[str, Shape]
    target: str
    library: LibraryKind = LibraryKind.NONE
    schedules: Mapping[str, str] = field(default_factory=dict)
    tf32: bool = False

    @property
    def size(self) -> int:
        return size_of(self.data)


@dataclass(frozen=True)
class ImportedModel:
    """The inputs, outputs and tuning tasks of a model that was imported and fused for a target.

    `computed_in`, `cache` and `no_cache` are as in `OnnxFile`; `is_onnx` tells whether the file is an ONNX
    model. `halves_in_float32` are the number of products of halves that are computed in float32, and the
    number of all products of halves. Raises ValueError for impossible values, because a compromised child
    may send anything.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tasks: tuple[ExtractedTask, ...]
    computed_in: str = "float64"
    is_onnx: bool = False
    cache: CacheSpec | None = None
    no_cache: str = ""
    halves_in_float32: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        types = [self.computed_in, *(spec.dtype for spec in (*self.inputs, *self.outputs))]
        if not all(map(_TYPE_NAME.fullmatch, types)):
            raise ValueError("an element type has no name")
        if not 0 <= self.halves_in_float32[0] <= self.halves_in_float32[1]:
            raise ValueError("there can't be more products in float32 than products")
        if self.cache is not None:
            _check_cache(self.cache, self.inputs, self.outputs)
        own = {task.workload_hash for task in self.tasks if not task.variant}
        for task in self.tasks:
            is_place = all(0 <= index < MAX_OPERANDS for index in task.constants)
            if not 0 < task.weight <= MAX_CALLS or not is_place:
                raise ValueError(f"the subgraph {task.name} has invalid numbers")
            if task.layer != readable(task.layer):
                raise ValueError(f"the layer of the subgraph {task.name} isn't one line of text")
            if task.variant and task.variant_of not in own:
                raise ValueError(
                    f"{task.name} is a variant of {task.variant_of}, which is no subgraph of the model"
                )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ImportedModel:
        """Read a model from the JSON of `dataclasses.asdict`. Raises msgspec.ValidationError."""
        return msgspec.convert(fields, cls)


def _check_cache(cache: CacheSpec, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise ValueError if a cache refers to inputs, outputs or axes that the model doesn't have."""
    taken, returned = ({spec.name: len(spec.shape) for spec in specs} for specs in (inputs, outputs))
    places = [(taken, cache.buffers), (taken, cache.tokens), (returned, cache.outputs)]
    if cache.position not in taken or not cache.buffers.keys() >= cache.moved.keys():
        raise ValueError("the cache refers to inputs that the model doesn't have")
    for ranks, axes in places:
        for name, axis in axes.items():
            if not 0 <= axis < ranks.get(name, 0):
                raise ValueError(f"the cache refers to axis {axis} of {name}, which the model doesn't have")


def import_model(
    data: bytes | IO[bytes],
    shapes: Mapping[str, Shape],
    target: str,
    limits: CompileLimits | None = None,
    *,
    tf32: bool = False,
) -> ImportedModel:
    """Import a model. Raises ModelError if the file is invalid, or if the import crashes, times out or
    exceeds its memory limit.
    """
    request = CompileRequest(data, shapes, target, tf32=tf32)
    return compile_in_child(request, limits or CompileLimits())


def compile_untuned(
    data: bytes | IO[bytes],
    shapes: Mapping[str, Shape],
    target: str,
    library: IO[bytes],
    limits: CompileLimits | None = None,
    *,
    tf32: bool = False,
) -> ImportedModel:
    """Import a model and compile it as TVM does by default, except that slow loop nests get their fallback
    schedule. If TVM can't compile it, compile our kernels with fallback schedules. Writes the library to a
    file. Raises ModelError, ArtifactError.
    """
    limits = limits or CompileLimits()
    request = CompileRequest(data, shapes, target, LibraryKind.UNTUNED, tf32=tf32)
    try:
        return compile_in_child(request, limits, library)
    except ArtifactError as error:
        _log.warning("TVM can't compile a model by default, trying fallback schedules: %s", error)
        return compile_in_child(replace(request, library=LibraryKind.TUNED), limits, library)


def compile_tuned(
    data: bytes | IO[bytes],
    shapes: Mapping[str, Shape],
    target: str,
    schedules: Mapping[str, str],
    library: IO[bytes],
    limits: CompileLimits | None = None,
    *,
    tf32: bool = False,
) -> None:
    """Compile a model with these schedules into a library, and write it to a file. Raises ModelError,
    ArtifactError.
    """
    request = CompileRequest(data, shapes, target, LibraryKind.TUNED, schedules, tf32)
    compile_in_child(request, limits or CompileLimits(), library)


def compile_in_child(
    request: CompileRequest, limits: CompileLimits, library: IO[bytes] | None = None
) -> ImportedModel:
    """Return the imported model, and write the requested library to `library`, an empty file open for reading
    and writing. A library may have gigabytes. It is checked in the file after the child ended, because the
    model may have compromised the child. A child that crashes gets a second try. Raises ModelError,
    ArtifactError; then the file is empty.
    """
    if request.size > MAX_MODEL_BYTES:
        raise ModelError(f"the model file has {request.size} bytes; the limit is {MAX_MODEL_BYTES}")
    timeout_s = limits.secs_for(request)
    has_library = request.library is not LibraryKind.NONE
    most = MAX_REPLY_BYTES + (LIBRARY_PER_MODEL_BYTE * request.size if has_library else 0)
    seed = linker_seed(request.target) if has_library else None
    asked = {
        "memory_bytes": limits.import_bytes(request),
        "build_bytes": limits.build_bytes(request),
        "shapes": dict(request.shapes),
        "target": request.target,
        "library": request.library,
        "schedules": dict(request.schedules),
        "tf32": request.tf32,
    }
    memory_bytes = max(limits.import_bytes(request), limits.build_bytes(request) if has_library else 0)
    run = partial(
        run_on_model, "compiler.children.models", request.data, asked, timeout_s, memory_bytes, seed
    )
    read = partial(_read_reply, request=request, timeout_s=timeout_s, most=most, library=library)
    with run() as (reply, status):
        if not crashed(status):
            return read(reply, status)
    # A crash that the model doesn't cause doesn't come back.
    with run() as (reply, status):
        return read(reply, status)


def _read_reply(
    reply: IO[bytes],
    status: int | None,
    *,
    request: CompileRequest,
    timeout_s: float,
    most: int,
    library: IO[bytes] | None,
) -> ImportedModel:
    """Read a child's reply of at most `most` bytes, and write its library to `library`. Raises ModelError,
    ArtifactError.
    """
    ended = f"takes longer than {timeout_s:g} s" if status is None else describe_exit(status)
    try:
        model = _read_line(reply.readline(most), ModelError, f"importing the model {ended}")
        size_line = reply.readline(most - reply.tell())
        size = _read_line(size_line, ArtifactError, f"compiling the model {ended}").get("library_bytes")
        if size_of(reply) > most or size_of(reply) - reply.tell() != size:
            raise ArtifactError(f"compiling the model {ended}")
        try:
            imported = ImportedModel.from_json(model)
        except msgspec.ValidationError as error:
            raise ModelError(f"the compiler's reply about the model is invalid: {error}") from error
    except (ModelError, ArtifactError) as error:
        needed, usable = import_memory_bytes(request.size), usable_memory_bytes()
        ran_out = status == -signal.SIGKILL or TOO_MUCH_MEMORY in str(error)
        if not ran_out or needed <= usable:
            raise
        raise type(error)(
            f"{error}: a model file of {request.size / 1e9:.3g} GB may take {needed / 1e9:.3g} GB of "
            f"memory and the scheduler may use {usable / 1e9:.3g} GB: run it where it may use more"
        ) from error
    if library is not None:
        _keep_library(reply, library)
    return imported


def _keep_library(reply: IO[bytes], library: IO[bytes]) -> None:
    """Copy the rest of a reply to a file. Raises ArtifactError if the library has symbols that compiled
    programs never use.
    """
    shutil.copyfileobj(reply, library)
    try:
        check_library(library)
    except SymbolError as error:
        library.seek(0)
        library.truncate()
        raise ArtifactError(f"the compiled library is refused: {error}") from error
    library.seek(0, os.SEEK_END)


def _read_line(line: bytes, error: type[Exception], otherwise: str) -> Mapping[str, Any]:
    """Parse a line of the child's reply. Raises `error` with the child's problem, or with `otherwise` for a
    malformed line.
    """
    try:
        fields: dict[str, Any] = json.loads(line)
        problem = fields.get("problem")
    except (ValueError, AttributeError, RecursionError):
        raise error(otherwise) from None
    if problem:
        raise error(str(problem)[:MAX_PROBLEM_CHARS])
    return fields


# The child's side


@dataclass(frozen=True)
class FusedModel:
    """An imported model, and the same model as calls of fused kernels."""

    model: RelaxModel
    fused: VariantModel
    is_onnx: bool
    halves_in_float32: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, request: CompileRequest) -> FusedModel:
        """Raises ModelError."""
        file = _read(request)
        model, is_onnx = file.to_relax(), isinstance(file, OnnxModel)
        del file  # `model` now holds its weights
        try:
            variants = VariantModel.of(model, request.target, request.tf32)
        except CompileError as error:
            file, compile_model = _read(request), partial(fuse, target=request.target)
            if isinstance(file, OnnxModel):
                raise failing_node_error(error, file.file, compile_model) from error
            if isinstance(file, ExportedProgram | StablehloModel | TfliteModel):
                raise failing_binding_error(error, model, file.describe_node, compile_model) from error
            raise
        counts = count_products(model.module, parse_target(request.target))
        return cls(model, variants, is_onnx, counts)

    @property
    def imported(self) -> ImportedModel:
        tasks = tuple(self.fused.tasks())
        model = self.model
        return ImportedModel(
            *(model.inputs, model.outputs, tasks, model.computed_in, self.is_onnx),
            *(model.cache, model.no_cache, self.halves_in_float32),
        )

    def prepare(self, request: CompileRequest) -> Callable[[Path], None]:
        """Return a function that compiles the requested library into a file. It holds no reference to this
        model, so weights that the library packs can be freed. Raises ModelError, ArtifactError; the returned
        function raises ArtifactError.
        """
        if request.library is LibraryKind.UNTUNED:
            try:
                untuned = fuse_untuned(self.model, request.target)
            except ModelError as error:
                raise ArtifactError(str(error)) from error
            on_gpu = parse_target(request.target).kind.name == "cuda"
            module = untuned if on_gpu else fallback.schedule_slow(untuned)
            return partial(build_library, module, request.target)
        if request.library is LibraryKind.TUNED:
            scheduled = schedule_module(
                self.fused.choose(request.schedules), request.schedules, request.target
            )
            return partial(build_scheduled, scheduled, request.target)
        return Path.touch


def _read(request: CompileRequest) -> ModelFile:
    """Read the model. Only libraries for CPUs keep the cache of a decoder."""
    file = read_model(request.data, request.shapes)
    on_gpu = parse_target(request.target).kind.name == "cuda"
    return file.as_function() if on_gpu and isinstance(file, OnnxModel | ExportedProgram) else file


def _answer(asked: dict[str, Any], reply: BinaryIO) -> None:
    file = os.fdopen(asked.pop("model"), "rb")
    baseline_bytes, build_bytes = data_bytes(), asked.pop("build_bytes")
    shapes = {name: tuple(shape) for name, shape in asked.pop("shapes").items()}
    request = CompileRequest(file, shapes, **asked | {"library": LibraryKind(asked["library"])})
    try:
        fused = FusedModel.of(request)
        write_line(reply, asdict(fused.imported))
    except Exception as error:
        write_line(reply, {"problem": _problem(error, "imported")})
        return
    limit_memory(build_bytes, baseline_bytes)
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        library = Path(folder) / LIBRARY
        try:
            build = fused.prepare(request)
            del fused
            build(library)
        except Exception as error:
            write_line(reply, {"problem": _problem(error, "compiled")})
            return
        write_line(reply, {"library_bytes": library.stat().st_size})
        with library.open("rb") as linked:
            shutil.copyfileobj(linked, reply)


def _problem(error: Exception, done: str) -> str:
    if isinstance(error, (ModelError, ArtifactError)):
        return str(error)
    return f"the model can't be {done}: {describe_error(error)}"


if __name__ == "__main__":
    serve(_answer)
