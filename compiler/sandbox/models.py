"""A stranger's model is imported and compiled in a child process: `compiler.sandbox.child` says why.

The child says what the model is as soon as it has imported it, and then sends the library that was asked for:
so it is known what it died of.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO

from compiler.importing.model import ExtractedTask, RelaxModel, extract_tasks, fuse, fuse_untuned, read_onnx
from compiler.importing.onnx_file import MAX_FILE_BYTES
from compiler.importing.spec import ModelError, Shape, TensorSpec, first_line
from compiler.packaging.artifact import ArtifactError, build_library, build_module
from compiler.sandbox.child import (
    BASE_MEMORY_BYTES,
    MEMORY_PER_MODEL_BYTE,
    WORKING_BYTES,
    describe_exit,
    enter_sandbox,
    lift_data_limit,
    limit_data_segment,
    physical_memory_bytes,
    redirect_stdout,
    run_child,
)

# LLVM takes the more, the more a model has kernels, however small its file is.
BUILD_MEMORY_BYTES = 8 << 30
TOO_MUCH_MEMORY = "it takes too much memory"


@dataclass(frozen=True)
class CompileLimits:
    """Seconds for an import and for a compilation. `memory_bytes` bounds the child's address space; None
    derives it from the model's size."""

    import_s: float = 300.0
    build_s: float = 1200.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.import_s <= 0 or self.build_s <= 0:
            raise ValueError(f"time limits must be positive, not {self.import_s} and {self.build_s}")

    def memory_for(self, order: CompileRequest) -> int:
        needed = BASE_MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * len(order.data)
        return self.memory_bytes or needed + (
            BUILD_MEMORY_BYTES if order.library is not LibraryKind.NONE else 0
        )

    def secs_for(self, order: CompileRequest) -> float:
        return self.import_s + (self.build_s if order.library is not LibraryKind.NONE else 0.0)


class LibraryKind(StrEnum):
    """What is compiled: nothing, what TVM makes of a model by default, or its kernels under schedules."""

    NONE = "none"
    UNTUNED = "untuned"
    TUNED = "tuned"


@dataclass(frozen=True)
class CompileRequest:
    """A .onnx file, shapes of its dynamic inputs, a target, and what to make of it. `schedules` maps workload
    hashes to traces; what has none gets the fallback schedule."""

    data: bytes
    shapes: Mapping[str, Shape]
    target: str
    library: LibraryKind = LibraryKind.NONE
    schedules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImportedModel:
    """What is in a model that was imported and fused for a target."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tasks: tuple[ExtractedTask, ...]


def import_model(
    data: bytes, shapes: Mapping[str, Shape], target: str, limits: CompileLimits | None = None
) -> ImportedModel:
    """Raises ModelError: what the import says, or that it crashed, ran out of memory or took too long."""
    return compile_in_child(CompileRequest(data, shapes, target), limits or CompileLimits())[0]


def compile_untuned(
    data: bytes, shapes: Mapping[str, Shape], target: str, limits: CompileLimits | None = None
) -> tuple[ImportedModel, bytes]:
    """What is in the model, and what TVM compiles it into by default. Raises ModelError, ArtifactError."""
    return compile_in_child(
        CompileRequest(data, shapes, target, LibraryKind.UNTUNED), limits or CompileLimits()
    )


def compile_tuned(
    data: bytes,
    shapes: Mapping[str, Shape],
    target: str,
    schedules: Mapping[str, str],
    limits: CompileLimits | None = None,
) -> bytes:
    """The model with its kernels under these schedules. Raises ModelError, ArtifactError."""
    return compile_in_child(
        CompileRequest(data, shapes, target, LibraryKind.TUNED, schedules), limits or CompileLimits()
    )[1]


def compile_in_child(order: CompileRequest, limits: CompileLimits) -> tuple[ImportedModel, bytes]:
    """By a child. Raises ModelError, ArtifactError."""
    if len(order.data) > MAX_FILE_BYTES:
        raise ModelError(f"the model file has {len(order.data)} bytes; the limit is {MAX_FILE_BYTES}")
    request = asdict(order) | {"data": len(order.data), "memory_bytes": limits.memory_for(order)}
    timeout_s = limits.secs_for(order)
    message = json.dumps(request).encode() + b"\n" + order.data
    reply, status = run_child("compiler.sandbox.models", message, timeout_s)
    try:
        return _read(reply, f"takes longer than {timeout_s:g} s" if status is None else describe_exit(status))
    except (ModelError, ArtifactError) as error:
        needed, there = WORKING_BYTES + MEMORY_PER_MODEL_BYTE * len(order.data), physical_memory_bytes()
        is_short = status == -signal.SIGKILL or TOO_MUCH_MEMORY in str(error)
        if not is_short or needed <= there:
            raise
        raise type(error)(
            f"{error}: a model file of {len(order.data) / 1e9:.3g} GB may take {needed / 1e9:.3g} GB of "
            f"memory and this machine has {there / 1e9:.3g} GB: run the scheduler on one with more"
        ) from error


def _read(reply: bytes, end: str) -> tuple[ImportedModel, bytes]:
    """What a child replied that came to this end. Raises ModelError, ArtifactError."""
    first, _, rest = reply.partition(b"\n")
    second, _, library = rest.partition(b"\n")
    imported = _imported(_head(first, ModelError, f"importing the model {end}"))
    size = _head(second, ArtifactError, f"compiling the model {end}")["library_bytes"]
    if len(library) != size:
        raise ArtifactError(f"compiling the model {end}")
    return imported, library


def _head(line: bytes, error: type[Exception], otherwise: str) -> Mapping[str, Any]:
    """What the child says in a line; raises the error if that is a problem, or nothing that makes sense."""
    try:
        said: dict[str, Any] = json.loads(line)
        problem = said.get("problem")
    except (ValueError, AttributeError):
        raise error(otherwise) from None
    if problem:
        raise error(str(problem))
    return said


def _imported(said: Mapping[str, Any]) -> ImportedModel:
    return ImportedModel(
        inputs=tuple(TensorSpec(**spec) for spec in said["inputs"]),
        outputs=tuple(TensorSpec(**spec) for spec in said["outputs"]),
        tasks=tuple(_task(task) for task in said["tasks"]),
    )


def _task(said: Mapping[str, Any]) -> ExtractedTask:
    sequences = {name: tuple(said[name]) for name in ("constants", "functions")}
    return ExtractedTask(**{**said, **sequences})


# The child's side


@dataclass(frozen=True)
class FusedModel:
    """A model as TVM has it: as it was imported, and as calls of the kernels that are tuned."""

    model: RelaxModel
    fused: Any

    @classmethod
    def of(cls, order: CompileRequest) -> FusedModel:
        """Raises ModelError."""
        model = read_onnx(order.data, order.shapes)
        return cls(model, fuse(model, order.target))

    @property
    def imported(self) -> ImportedModel:
        return ImportedModel(self.model.inputs, self.model.outputs, tuple(extract_tasks(self.fused)))

    def library(self, order: CompileRequest) -> bytes:
        """Raises ModelError, ArtifactError."""
        if order.library is LibraryKind.UNTUNED:
            return build_library(fuse_untuned(self.model, order.target), order.target)
        if order.library is LibraryKind.TUNED:
            return build_module(self.fused, order.schedules, order.target)
        return b""


def _serve(source: BinaryIO, reply: BinaryIO) -> None:
    request = json.loads(source.readline())
    enter_sandbox(request.pop("memory_bytes"))
    limit_data_segment(request.pop("data"))
    shapes = {name: tuple(shape) for name, shape in request.pop("shapes").items()}
    order = CompileRequest(source.read(), shapes, **request | {"library": LibraryKind(request["library"])})
    try:
        fused = FusedModel.of(order)
        _say(reply, asdict(fused.imported))
    except Exception as error:
        _say(reply, {"problem": _problem(error, "imported")})
        return
    lift_data_limit()
    try:
        library = fused.library(order)
    except Exception as error:
        _say(reply, {"problem": _problem(error, "compiled")})
        return
    _say(reply, {"library_bytes": len(library)})
    reply.write(library)


def _problem(error: Exception, done: str) -> str:
    """What nobody foresaw in a stranger's file is a reason as well."""
    if isinstance(error, (ModelError, ArtifactError)):
        return str(error)
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return f"the model can't be {done}: {TOO_MUCH_MEMORY}"
    return f"the model can't be {done}: {first_line(error)}"


def _say(reply: BinaryIO, what: Mapping[str, Any]) -> None:
    reply.write(json.dumps(what).encode() + b"\n")
    reply.flush()


def _main() -> None:
    with redirect_stdout() as reply:
        _serve(sys.stdin.buffer, reply)
    # TVM's threads and tear-down have nothing to add.
    os._exit(0)


if __name__ == "__main__":
    _main()
