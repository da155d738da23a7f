"""Compiled models: a shared library, its weights in the same file, and a manifest that describes it."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import tvm
from tvm import relax, tirx

from compiler import fallback
from compiler.codegen.compilation import apply_passes, pass_context
from compiler.codegen.pipeline import PIPELINE, UNTUNED
from compiler.constants.packing import prepack
from compiler.importing.spec import (
    CacheSpec,
    CompileError,
    Derived,
    TensorSpec,
    first_line,
    is_out_of_memory,
)
from compiler.lowering.trace import UNSCHEDULED, LoweringError, apply_trace
from compiler.packaging import archive
from compiler.packaging.archive import ArchiveError
from compiler.packaging.centered_tensors import center_tensors
from compiler.packaging.cuda import CudaError, load_cuda
from compiler.packaging.kernel_objects import KernelObjects
from compiler.packaging.large_constants import LargeConstants
from compiler.packaging.linker import LinkerError, find_linker, link_library
from compiler.packaging.weights import Weights
from compiler.target import host_triple, parse_target, target_features
from compiler.workload import normalise, workload_hash
from core.library_weights import read_index
from core.quantization import Quantization

LIBRARY = "model.so"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
REFERENCE = "reference.so"
INPUTS = "inputs.npz"
# The prefix of errors of the reference, not of the library under test.
REFERENCE_FAILED = "the untuned model, to compare with: "
MAX_LIBRARY_BYTES = 4 << 30
MAX_MANIFEST_BYTES = 16 << 20
# The instruction set of AMX's tiles, and the instruction that releases tiles.
AMX_TILES, TILE_RELEASE = "amx_tile", bytes.fromhex("c4e27849c0")
_CHUNK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class ArtifactError(ValueError):
    """A library can't be built, or bytes are not an artifact. The message is one sentence for users."""


class ScheduleError(ArtifactError):
    """The trace of a workload doesn't apply to it."""

    def __init__(self, message: str, workload_hash: str) -> None:
        super().__init__(message)
        self.workload_hash = workload_hash


@dataclass(frozen=True)
class TaskEntry:
    """One workload in an artifact. The `source` of its `trace` is "trial", "import", or "fallback" for the
    fallback schedule; `trace` and `latency_s` are None if no device measured it. `share` is its fraction of
    the time of all measured workloads. `reason` says why the workload isn't tuned or doesn't use its best
    schedule; "" otherwise. `variant` names the variant that computes the workload, if any
    (`compiler.variants`).
    """

    workload: str
    name: str
    weight: int
    trace: str | None = None
    latency_s: float | None = None
    source: str = "fallback"
    reason: str = ""
    variant: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Verification:
    """The checks of a published library's outputs and speed.

    `import_unverified` says why the imported model was not compared with its file in another runtime.
    `outputs_unverified` says why the library's outputs were not compared with the untuned library's. Both are
    empty after a comparison. `worker` and `device` timed it. `noise` is the range from the 10th to the 90th
    percentile of its timings, as a fraction of their median; None for a single timing.
    """

    import_unverified: str
    outputs_unverified: str
    worker: str
    device: str
    noise: float | None


@dataclass(frozen=True)
class Manifest:
    """The description of a compiled model: enough to run it, to compare it and to rebuild it.

    `untuned_s`, `tuned_s` and `published_s` are the seconds per call of the whole model, timed alternately on
    the device. `published_s` is the time of an earlier job's artifact. `instructions` are the instruction
    sets that the target allows, as /proc/cpuinfo names them: tunefarm-runtime rejects a machine that lacks
    one. `computed_in` is the coarsest type of intermediate values, as in `OnnxFile`. Published manifests have
    a `verification` and the digest `library_sha256`, because the signature covers the manifest alone. If the
    service quantized the model, `quantization` says how, without its layers. A decoder whose library keeps
    its cache has a `cache`; `no_cache` says why another one doesn't.
    """

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
    untuned_s: tuple[float, ...] = ()
    tuned_s: tuple[float, ...] = ()
    published_s: tuple[float, ...] = ()
    computed_in: str = "float64"
    instructions: tuple[str, ...] = ()
    library_sha256: str = ""
    verification: Verification | None = None
    quantization: Quantization | None = None
    cache: CacheSpec | None = None
    no_cache: str = ""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"an artifact runs on at least one thread, not {self.threads}")

    @property
    def kernels_s(self) -> float | None:
        """The sum of the latencies of all kernels, timed one by one; None unless all were measured."""
        secs = [None if task.latency_s is None else task.weight * task.latency_s for task in self.tasks]
        known = [each for each in secs if each is not None]
        return sum(known) if known and len(known) == len(secs) else None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse a manifest. Raises ArtifactError for any other text."""
        try:
            data = json.loads(text)
            # Manifests of older versions lack some of these fields.
            for key, make in ((key, make) for key, make in _NESTED.items() if key in data):
                data[key] = tuple(make(item) for item in data[key])
            if data.get("verification") is not None:
                data["verification"] = Verification(**data["verification"])
            if data.get("cache") is not None:
                derived = tuple(Derived(**one) for one in data["cache"]["derived"])
                data["cache"] = CacheSpec(**data["cache"] | {"derived": derived})
            if data.get("quantization") is not None:
                data["quantization"] = msgspec.convert(data["quantization"], Quantization)
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ArtifactError(
                f"{MANIFEST} is damaged or of another version: {first_line(error)}"
            ) from error


def instructions_of(library: IO[bytes], target: str) -> tuple[str, ...]:
    """Return the instruction sets that a library may use, as Linux names them.

    AMX is among them only if a kernel releases tiles, as all do that use them. Otherwise a library would ask
    Linux for tiles that it doesn't need.
    """
    features = target_features(parse_target(target))
    if AMX_TILES in features and not _contains(library, TILE_RELEASE):
        features = frozenset(name for name in features if not name.startswith("amx_"))
    return tuple(sorted(features))


def _contains(library: IO[bytes], code: bytes) -> bool:
    """Return whether an ELF library has these bytes. Weights behind it are skipped."""
    left = read_index(library).library_bytes
    library.seek(0)
    kept = b""
    while left > 0 and (chunk := library.read(min(left, _CHUNK_BYTES))):
        if code in kept + chunk:
            return True
        left -= len(chunk)
        kept = chunk[-len(code) :]
    return False


_NESTED: Mapping[str, Callable[[Any], object]] = {
    "inputs": lambda spec: TensorSpec(**spec),
    "outputs": lambda spec: TensorSpec(**spec),
    "tasks": lambda entry: TaskEntry(**entry),
    "untuned_s": float,
    "tuned_s": float,
    "published_s": float,
    "instructions": str,
}


def schedule_module(fused: tvm.IRModule, schedules: Mapping[str, str], target: str) -> tvm.IRModule:
    """Schedule the functions of a fused module, and pack its constants as the schedules read them.

    `schedules` maps workload hashes to traces; functions without one get the fallback schedule. Raises
    ScheduleError if a trace doesn't apply, ArtifactError if the constants can't be packed.
    """
    on_gpu = parse_target(target).kind.name == "cuda"
    functions = {
        name: _schedule_function(name.name_hint, func, schedules, on_gpu)
        if isinstance(func, tirx.PrimFunc)
        else func
        for name, func in fused.functions_items()
    }
    try:
        return prepack(tvm.IRModule(functions, attrs=fused.attrs, global_infos=fused.global_infos))
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise ArtifactError(f"the model's constants can't be packed: {first_line(error)}") from error


def build_scheduled(scheduled: tvm.IRModule, target: str, library: Path) -> None:
    """Compile a module from `schedule_module` into a shared library that needs only TVM's runtime. Raises
    ArtifactError if code generation fails or no linker is found.
    """
    parsed = parse_target(target)
    with pass_context(parsed):
        build_library(apply_passes(scheduled, parsed), target, library, PIPELINE)


def build_library(module: tvm.IRModule, target: str, library: Path, pipeline: str = UNTUNED) -> None:
    """Compile a module whose functions are scheduled or need no schedule into a shared library.

    Raises ArtifactError as `build_scheduled` does.
    """
    parsed = parse_target(target)
    triple = host_triple(parsed)
    constants, weights = LargeConstants(), Weights()
    on_gpu = parsed.kind.name == "cuda"

    def graph_pipeline(module: tvm.IRModule) -> tvm.IRModule:
        # TVM's GPU pipeline would fuse scheduled functions again.
        return constants.set_aside(relax.get_pipeline("default")(module))

    try:
        link = find_linker(triple)
        if on_gpu:
            load_cuda()
            module = fallback.schedule_for_gpu(module, parsed)
            # Calls with static shapes become a CUDA graph.
            with parsed, pass_context(parsed, **{"relax.backend.use_cuda_graph": True}):
                built = relax.build(module, parsed, relax_pipeline=graph_pipeline, tir_pipeline=pipeline)
            link_library(built, triple, link, library, constants)
            return
        with (
            tempfile.TemporaryDirectory(prefix="tunefarm-") as folder,
            KernelObjects(parsed, pipeline, Path(folder)) as kernels,
        ):

            def bytecode_pipeline(module: tvm.IRModule) -> tvm.IRModule:
                planned = center_tensors(relax.get_pipeline("default")(module))
                return kernels.start(weights.lift(planned))

            built = relax.build(module, parsed, relax_pipeline=bytecode_pipeline, tir_pipeline=pipeline)
            link_library(built, triple, link, library, objects=kernels.paths())
        weights.append(library)
    except (LinkerError, CudaError) as error:
        raise ArtifactError(str(error)) from error
    except Exception as error:  # TVM's C++ code may raise any exception class
        if is_out_of_memory(error):
            raise
        _log.warning("a model can't be compiled: %s: %s", type(error).__name__, first_line(error))
        raise ArtifactError(str(CompileError())) from error


def _schedule_function(
    name: str, func: tirx.PrimFunc, schedules: Mapping[str, str], on_gpu: bool
) -> tirx.PrimFunc:
    if func.attrs.get("tirx.is_scheduled", False):
        return func
    workload = normalise(func)
    key = workload_hash(workload)
    trace = schedules.get(key)
    if on_gpu and trace in (None, UNSCHEDULED):
        return func  # `build_library` schedules the rest
    try:
        module = fallback.schedule(workload) if trace is None else apply_trace(workload, trace)
    except LoweringError as error:
        raise ScheduleError(f"the schedule of {name} doesn't apply: {error}", key) from error
    return fallback.mark_scheduled(module["main"], func)


def write(
    file: IO[bytes],
    library: IO[bytes],
    manifest: Manifest,
    reference: IO[bytes] | None = None,
    sign: Callable[[bytes], str] | None = None,
) -> None:
    """Write a library and its manifest as an uncompressed .tar. Equal contents give equal bytes.

    A `reference` is another library of the same model. A worker with `compare` times the artifact only if
    both libraries' outputs agree. `sign` returns a signature of the manifest's text, which is added to the
    archive.
    """
    text = manifest.to_json().encode()
    entries: list[tuple[str, IO[bytes]]] = [(MANIFEST, io.BytesIO(text))]
    if sign is not None:
        entries.append((SIGNATURE, io.BytesIO(sign(text).encode())))
    entries.append((LIBRARY, library))
    archive.write(file, entries if reference is None else [*entries, (REFERENCE, reference)])


def pack(library: bytes, manifest: Manifest, reference: bytes | None = None) -> bytes:
    """Return an artifact as `write` writes it."""
    buffer = io.BytesIO()
    write(buffer, io.BytesIO(library), manifest, None if reference is None else io.BytesIO(reference))
    return buffer.getvalue()


def open_artifact(file: IO[bytes]) -> tuple[IO[bytes], Manifest]:
    """Return an artifact's library, as a part of the file, and its manifest. Raises ArtifactError for any
    other file.
    """
    limits = {MANIFEST: MAX_MANIFEST_BYTES, LIBRARY: MAX_LIBRARY_BYTES}
    try:
        entries = archive.open_entries(file, limits, "artifact")
        return entries[LIBRARY], Manifest.from_json(entries[MANIFEST].read().decode())
    except ArchiveError as error:
        raise ArtifactError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ArtifactError(f"the artifact is damaged: {first_line(error)}") from error


def unpack(data: bytes) -> tuple[bytes, Manifest]:
    """Return the library and the manifest of a packed artifact. Raises ArtifactError for any other bytes."""
    library, manifest = open_artifact(io.BytesIO(data))
    return library.read(), manifest


def open_reference(file: IO[bytes]) -> IO[bytes] | None:
    """Return an artifact's reference, as a part of the file; None without one. Raises ArtifactError."""
    return _open_more(file, REFERENCE)


def open_inputs(file: IO[bytes]) -> IO[bytes] | None:
    """Return the .npz file of inputs packed with an artifact, as a part of the file; None without one. Raises
    ArtifactError."""
    return _open_more(file, INPUTS)


def write_with_inputs(file: IO[bytes], artifact: IO[bytes], inputs: IO[bytes]) -> None:
    """Pack an artifact and an .npz file of inputs to call it with. Raises ArtifactError."""
    library, manifest = open_artifact(artifact)
    text = io.BytesIO(manifest.to_json().encode())
    archive.write(file, [(MANIFEST, text), (LIBRARY, library), (INPUTS, inputs)])


def _open_more(file: IO[bytes], name: str) -> IO[bytes] | None:
    try:
        if name not in archive.names(file, "artifact"):
            return None
        return archive.open_entries(file, {name: MAX_LIBRARY_BYTES}, "artifact")[name]
    except ArchiveError as error:
        raise ArtifactError(str(error)) from error
