"""Build, verify and time candidates and whole modules on this machine: what a worker's child does.

A candidate is timed as it will be deployed: what it packs is packed before, and between the repeats the
constants of the model (weights) are flushed from the caches, because a network streams them, while the
activations stay.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from compiler import fallback
from compiler.artifact import unpack
from compiler.codegen import prepared
from compiler.lower import apply_trace
from compiler.packing import Split, split
from compiler.target import parse_target
from compiler.workload import from_json
from search.measurement import Measurement, Outcome

FLUSH = "tunefarm.flush_constants"
SEED = 0
# A candidate is repeated until its timing has taken this long, within these bounds.
TIMING_S = 0.04
MIN_REPEATS, MAX_REPEATS = 3, 30
MODULE_TIMING_S = 1.5
MAX_MODULE_REPEATS = 200
RELATIVE_TOLERANCE = {"float32": 1e-3, "float64": 1e-6, "float16": 2e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Built:
    """A compiled candidate, machine code emitted, ready to run. With `parts`, on packed constants."""

    library: Any
    function: Any
    build_secs: float
    parts: Split | None = None


@dataclass(frozen=True)
class _Subject:
    """A workload's fixed inputs and the outputs that every candidate must give."""

    arguments: tuple[NDArray[Any], ...]
    outputs: tuple[int, ...]
    reference: tuple[NDArray[Any], ...]


class Bench:
    """Measures on this machine's CPU, or on its GPU for CUDA. Bad candidates come back as measurements,
    never as exceptions. Without a GPU, those for CUDA can be built, not run.

    `TVM_NUM_THREADS` in the environment sets how many threads they run on; TVM reads it once.
    """

    def __init__(self, target: str) -> None:
        """Raises ValueError when TVM doesn't know the target."""
        self._target = parse_target(target)
        self._on_gpu = self._target.kind.name == "cuda"
        self._device = tvm.cuda(0) if self._on_gpu else tvm.cpu()
        self._workload = lru_cache(maxsize=64)(from_json)
        self._subject = lru_cache(maxsize=64)(self._make_subject)

    def build(self, module_json: str, trace: str) -> Built | Measurement:
        """Replays a trace on a workload and compiles it. Threads may build at the same time."""
        start = time.perf_counter()
        try:
            scheduled = apply_trace(self._workload(module_json), trace)
            parts = split(scheduled)
            module = prepared(parts.module if parts else scheduled, self._target)
            library = tvm.compile(module, target=self._target)
            # Machine code is emitted on the first look-up: that is building, not running.
            function = library["main"]
            if self._on_gpu and not library.mod.imports:
                # Host code that reads the device's memory would bring this process down.
                return Measurement(Outcome.BUILD_ERROR, error="nothing is bound to the GPU's threads")
        except Exception as error:  # TVM raises whatever class its C++ side names
            return Measurement(Outcome.BUILD_ERROR, error=_tail(error))
        return Built(library, function, time.perf_counter() - start, parts)

    def run(self, built: Built, module_json: str, constants: Sequence[int]) -> Measurement:
        """Checks a candidate's outputs against the unsearched workload's, then times it."""
        try:
            subject = self._subject(module_json)
            arguments = self._packed(built, self._place(subject))
            built.function(*arguments)
            wrong = _difference(subject, arguments)
            if wrong:
                return Measurement(Outcome.WRONG_RESULT, build_secs=built.build_secs, error=wrong)
            secs = self._time(built.library, arguments, constants)
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, build_secs=built.build_secs, error=_tail(error))
        return Measurement(Outcome.OK, secs, built.build_secs)

    def measure_module(self, artifact: bytes) -> Measurement:
        """Times a packed module end to end with random inputs."""
        try:
            library, manifest = unpack(artifact)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.so"
                path.write_bytes(library)
                machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), self._device)
                rng = np.random.default_rng(SEED)
                inputs = [self._tensor(_random(spec.shape, spec.dtype, rng)) for spec in manifest.inputs]
                secs = _time_calls(lambda: machine["main"](*inputs))
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, error=_tail(error))
        return Measurement(Outcome.OK, secs)

    def self_check(self) -> None:
        """Compiles, runs and verifies a tiny kernel. Raises RuntimeError if the machine can't be trusted."""
        source = te.placeholder((64,), name="source")
        doubled = te.compute(source.shape, lambda i: source[i] * 2.0, name="doubled")
        module = tvm.IRModule({"main": te.create_prim_func([source, doubled])})
        if self._on_gpu:
            module = _one_block(module)
        given = np.arange(64, dtype="float32")
        arguments = [self._tensor(given), self._tensor(np.zeros(64, dtype="float32"))]
        tvm.compile(module, target=self._target)["main"](*arguments)
        if not np.array_equal(arguments[1].numpy(), given * 2):
            raise RuntimeError("the probe kernel computed a wrong result on this machine")

    def _make_subject(self, module_json: str) -> _Subject:
        module = self._workload(module_json)
        function = module["main"]
        outputs = _outputs(function)
        rng = np.random.default_rng(SEED)
        arguments = tuple(_random(_shape(p), str(p.ty.dtype), rng) for p in function.params)
        placed = [tvm.runtime.tensor(argument) for argument in arguments]
        # The fallback's few safe steps share nothing with the search, and take a tenth of plain loops' time.
        # It runs on the CPU, also for a GPU's candidates.
        target = (self._target.host or "llvm") if self._on_gpu else self._target
        tvm.compile(fallback.schedule(module), target=target)["main"](*placed)
        return _Subject(arguments, outputs, tuple(placed[i].numpy() for i in outputs))

    def _place(self, subject: _Subject) -> list[Any]:
        """Fresh copies of the inputs; outputs start as garbage that no correct kernel leaves behind."""
        placed = [self._tensor(argument) for argument in subject.arguments]
        for i in subject.outputs:
            garbage = np.full(subject.arguments[i].shape, 113, dtype=subject.arguments[i].dtype)
            placed[i] = self._tensor(garbage)
        return placed

    def _packed(self, built: Built, arguments: list[Any]) -> list[Any]:
        """The arguments as the candidate's `main` takes them."""
        parts = built.parts
        if parts is None:
            return arguments
        packed = [
            tvm.runtime.empty(shape, dtype, self._device)
            for shape, dtype in zip(parts.shapes, parts.dtypes, strict=True)
        ]
        built.library["pack"](*(arguments[i] for i in parts.operands), *packed)
        replaced = dict(zip(parts.operands, packed, strict=True))
        return [replaced.get(i, argument) for i, argument in enumerate(arguments)]

    def _tensor(self, array: NDArray[Any]) -> Any:
        return tvm.runtime.tensor(array, device=self._device)

    def _time(self, library: Any, arguments: list[Any], constants: Sequence[int]) -> tuple[float, ...]:
        # A GPU's timer calls nothing between repeats: its caches are small beside what a network streams.
        _flush_between_repeats(() if self._on_gpu else constants)
        start = time.perf_counter()
        self._evaluate(library, arguments, 1)
        # Flushing takes longer than many a kernel, so what a repeat costs is not what it times.
        repeats = int(TIMING_S / (time.perf_counter() - start))
        return self._evaluate(library, arguments, min(max(repeats, MIN_REPEATS), MAX_REPEATS))

    def _evaluate(self, library: Any, arguments: list[Any], repeats: int) -> tuple[float, ...]:
        timer = library.mod.time_evaluator("main", self._device, number=1, repeat=repeats, f_preproc=FLUSH)
        return tuple(float(secs) for secs in timer(*arguments).results)


def _one_block(module: tvm.IRModule) -> tvm.IRModule:
    """The probe's one loop as threads of a GPU."""
    schedule = Schedule(module, debug_mask="none")
    block = schedule.get_sblock("doubled")
    (loop,) = schedule.get_loops(block)
    grid, thread = schedule.split(loop, [None, 32])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return schedule.mod


def _flush_between_repeats(constants: Sequence[int]) -> None:
    """Registers, under the name that the timer calls, a flush of the arguments at `constants`."""
    flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def flush_constants(*arguments: Any) -> None:
        if constants:
            flush(arguments[0], *(arguments[i] for i in constants))

    tvm_ffi.register_global_func(FLUSH, flush_constants, override=True)


def _time_calls(call: Callable[[], object]) -> tuple[float, ...]:
    """Wall-clock seconds of repeated calls. The first one, which finds cold caches and a sleeping thread
    pool, counts only for modules so slow that it makes no difference."""
    secs: list[float] = []
    while len(secs) < 2 or (sum(secs) < MODULE_TIMING_S and len(secs) <= MAX_MODULE_REPEATS):
        start = time.perf_counter()
        call()
        secs.append(time.perf_counter() - start)
    return tuple(secs[1:] if len(secs) > 2 else secs)


def _difference(subject: _Subject, arguments: Sequence[Any]) -> str:
    """Empty when all outputs agree with the reference, else where they don't."""
    for i, expected in zip(subject.outputs, subject.reference, strict=True):
        actual, wanted = arguments[i].numpy().astype(np.float64), expected.astype(np.float64)
        tolerance = RELATIVE_TOLERANCE.get(str(expected.dtype), 0.0)
        # Random inputs have no square root or logarithm: such values agree when both are nan.
        scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        far = ~np.isclose(actual, wanted, rtol=tolerance, atol=0.1 * tolerance * scale, equal_nan=True)
        if far.any():
            worst = np.max(np.abs(actual[far] - wanted[far]))
            return f"output {i}: {np.count_nonzero(far)} of {far.size} values differ, by up to {worst:.3g}"
    return ""


def _outputs(function: tirx.PrimFunc) -> tuple[int, ...]:
    """Positions of the parameters that the function writes."""
    written: list[Any] = []

    def collect(store: Any) -> None:
        written.append(store.buffer)

    tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, collect)])
    return tuple(i for i, p in enumerate(function.params) if any(p.same_as(buffer) for buffer in written))


def _shape(parameter: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in parameter.ty.shape)


def _random(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """Normal floats; integers are 0 or 1, which is in range wherever they are used as indices."""
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _tail(error: BaseException, length: int = 2000) -> str:
    return str(error)[-length:]
