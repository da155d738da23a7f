"""Compiled models: one shared library with the weights inside, and a manifest that says what it is."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from compiler import fallback
from compiler.codegen import prepared
from compiler.linker import LinkerError, linker, machine_of
from compiler.lower import LoweringError, apply_trace
from compiler.packing import prepack
from compiler.spec import TensorSpec, first_line
from compiler.target import parse_target, triple_of
from compiler.workload import normalise, workload_hash

LIBRARY = "model.so"
MANIFEST = "manifest.json"
MAX_LIBRARY_BYTES = 4 << 30
MAX_MANIFEST_BYTES = 16 << 20


class ArtifactError(ValueError):
    """A library can't be built, or an artifact isn't one; one sentence for the user."""


@dataclass(frozen=True)
class TaskEntry:
    """One workload in an artifact. `trace` and `latency_s` are None where it runs the fallback schedule."""

    workload: str
    name: str
    weight: int
    trace: str | None = None
    latency_s: float | None = None
    source: str = "fallback"


@dataclass(frozen=True)
class Manifest:
    """What a compiled model is: enough to run it, to compare it and to make it again. Times are seconds."""

    model_name: str
    model_sha: str
    target: str
    device_class: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int
    versions: Mapping[str, str]
    created_at: float
    tasks: tuple[TaskEntry, ...] = ()
    untuned_secs: tuple[float, ...] = ()
    tuned_secs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"an artifact runs on at least one thread, not {self.threads}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ArtifactError when the text is no manifest."""
        try:
            data = json.loads(text)
            for key, make in _NESTED.items():
                data[key] = tuple(make(item) for item in data[key])
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ArtifactError(
                f"{MANIFEST} is damaged or of another version: {first_line(error)}"
            ) from error


_NESTED: Mapping[str, Callable[[Any], object]] = {
    "inputs": lambda spec: TensorSpec(**spec),
    "outputs": lambda spec: TensorSpec(**spec),
    "tasks": lambda entry: TaskEntry(**entry),
    "untuned_secs": float,
    "tuned_secs": float,
}


def build_module(fused: tvm.IRModule, schedules: Mapping[str, str], target: str) -> bytes:
    """Compile a fused module into a shared library that TVM's runtime alone can load.

    `schedules` maps workload hashes to traces; functions without one get the fallback schedule. Raises
    ArtifactError when a trace doesn't apply, the code can't be generated or nothing is there to link it with.
    """
    scheduled = _scheduled(fused, schedules)
    try:
        prepacked = prepack(scheduled)
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise ArtifactError(f"the model's constants can't be packed: {first_line(error)}") from error
    return build_library(prepared(prepacked, parse_target(target)), target)


def build_library(module: tvm.IRModule, target: str) -> bytes:
    """Compile a module as it is, schedules included; see `build_module`."""
    parsed = parse_target(target)
    triple = triple_of(parsed)
    try:
        link = linker(triple)
        executable = relax.build(module, parsed)
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            path = Path(folder) / LIBRARY
            executable.export_library(str(path), workspace_dir=folder, fcompile=link)
            library = path.read_bytes()
    except LinkerError as error:
        raise ArtifactError(str(error)) from error
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise ArtifactError(f"the model can't be compiled: {first_line(error)}") from error
    if machine_of(library) != triple.partition("-")[0]:
        raise ArtifactError(f"the linker made a library that doesn't run on {triple}: set CC to another one")
    return library


def _scheduled(fused: tvm.IRModule, schedules: Mapping[str, str]) -> tvm.IRModule:
    functions = {
        name: _schedule(name.name_hint, func, schedules) if isinstance(func, tirx.PrimFunc) else func
        for name, func in fused.functions_items()
    }
    return tvm.IRModule(functions, attrs=fused.attrs, global_infos=fused.global_infos)


def _schedule(name: str, func: tirx.PrimFunc, schedules: Mapping[str, str]) -> tirx.PrimFunc:
    """A private function stays private: its name is then free for the linker to choose."""
    if func.attrs.get("tirx.is_scheduled", False):
        return func
    workload = normalise(func)
    trace = schedules.get(workload_hash(workload))
    try:
        module = fallback.schedule(workload) if trace is None else apply_trace(workload, trace)
    except LoweringError as error:
        raise ArtifactError(f"the schedule of {name} doesn't apply: {error}") from error
    scheduled = module["main"].with_attr("tirx.is_scheduled", True)
    return scheduled if "global_symbol" in func.attrs else scheduled.without_attr("global_symbol")


def pack(library: bytes, manifest: Manifest) -> bytes:
    """An uncompressed .tar of the library and its manifest; equal contents give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in ((MANIFEST, manifest.to_json().encode()), (LIBRARY, library)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[bytes, Manifest]:
    """The library and the manifest of a packed artifact. Raises ArtifactError for anything else.

    Nothing is written to disk, so no name in the archive can lead anywhere.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            manifest = _read_entry(tar, MANIFEST, MAX_MANIFEST_BYTES)
            library = _read_entry(tar, LIBRARY, MAX_LIBRARY_BYTES)
        return library, Manifest.from_json(manifest.decode())
    except (tarfile.TarError, EOFError, OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the artifact is damaged: {first_line(error)}") from error


def _read_entry(tar: tarfile.TarFile, name: str, limit: int) -> bytes:
    try:
        entry = tar.getmember(name)
    except KeyError as error:
        raise ArtifactError(f"the artifact holds no {name}") from error
    file = tar.extractfile(entry) if entry.isreg() else None
    if file is None or entry.size > limit:
        raise ArtifactError(f"{name} in the artifact is no plain file of at most {limit} bytes")
    content = file.read()
    if len(content) != entry.size:
        raise ArtifactError(f"the artifact is damaged: {name} is cut short")
    return content
