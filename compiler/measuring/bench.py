"""Build, verify and time candidates and whole modules: what a worker's child does.

A candidate is timed as it will be deployed: what it packs is packed before, and between the repeats the
constants of the model (weights) are flushed from the caches, because a network streams them, while the
activations stay.
"""

from __future__ import annotations

import contextlib
import platform
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
from tvm import relax, te
from tvm.s_tir import Schedule

from compiler import fallback
from compiler.codegen.steps import compiled
from compiler.constants.packing import Packed, Split
from compiler.lowering.trace import apply_trace
from compiler.measuring.operands import SEED, Operands, random_array
from compiler.measuring.outputs import difference
from compiler.measuring.timing import Kernel
from compiler.packaging.artifact import REFERENCE_FAILED, reference_of, unpack
from compiler.packaging.library import Library, LibraryError
from compiler.packaging.linker import linked, linker
from compiler.target import parse_target, triple_of
from compiler.workload import from_json
from core.measurement import Measurement, Outcome

# A turn of a whole model: calls until it is warm, then calls for so long. There are as many repeats at most;
# where there were more calls, a repeat is the median of several.
WARM_UP_S, TURN_S = 0.1, 0.3
MAX_TURN_REPEATS = 40
# One call of what takes so long tells enough: cold caches and sleeping threads don't matter then.
LONG_S = 1.0


@dataclass(frozen=True)
class BuiltKernel:
    """A compiled candidate, machine code emitted, ready to run. With `parts`, on packed constants."""

    library: Any
    function: Any
    build_secs: float
    parts: Packed | None = None


class Bench:
    """Measures on this machine's CPU, or on its GPU for CUDA. Bad candidates come back as measurements,
    never as exceptions. Without a GPU, those for CUDA can be built, not run. For another machine's target
    they can be exported, for that machine to load.

    `TVM_NUM_THREADS` in the environment sets how many threads they run on; TVM reads it once.
    """

    def __init__(self, target: str) -> None:
        """Raises ValueError when TVM doesn't know the target."""
        self._target = parse_target(target)
        self._on_gpu = self._target.kind.name == "cuda"
        self._device = tvm.cuda(0) if self._on_gpu else tvm.cpu()
        self._workload = lru_cache(maxsize=64)(from_json)
        self._reference = lru_cache(maxsize=64)(self._compile_reference)
        self._operands = lru_cache(maxsize=64)(self._make_operands)

    def build(self, module_json: str, trace: str) -> BuiltKernel | Measurement:
        """Replays a trace on a workload and compiles it. Threads may build at the same time."""
        start = time.perf_counter()
        try:
            library, parts = self._compile(module_json, trace)
            # Machine code is emitted on the first look-up: that is building, not running.
            function = library["main"]
            if self._on_gpu and not library.mod.imports:
                # Host code that reads the device's memory would bring this process down.
                return Measurement(Outcome.BUILD_ERROR, error="nothing is bound to the GPU's threads")
        except Exception as error:  # TVM raises whatever class its C++ side names
            return Measurement(Outcome.BUILD_ERROR, error=_tail(error))
        return BuiltKernel(library, function, time.perf_counter() - start, parts)

    def export(self, module_json: str, trace: str) -> Library | Measurement:
        """As `build`, for the machine of the target: what `load` takes there."""
        start = time.perf_counter()
        try:
            triple = triple_of(self._target)
            library, parts = self._compile(module_json, trace)
            data = linked(library, triple, linker(triple))
        except Exception as error:
            return Measurement(Outcome.BUILD_ERROR, error=_tail(error))
        return Library(data, parts, time.perf_counter() - start)

    def load(self, packed: bytes) -> BuiltKernel | Measurement:
        """What was exported for this machine, in place of `build`; its build_secs are those of there."""
        try:
            found = Library.unpack(packed)
            library = found.load(platform.machine())
            return BuiltKernel(library, library["main"], found.build_secs, found.parts)
        except LibraryError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))
        except Exception as error:
            return Measurement(Outcome.BUILD_ERROR, error=f"the library can't be loaded: {_tail(error)}")

    def prepare(self, module_json: str) -> None:
        """Compiles what a workload's candidates are compared with, ahead of `run`, which fails if this does.
        Threads may do so at the same time."""
        with contextlib.suppress(Exception):
            self._reference(module_json)

    def run(
        self, built: BuiltKernel, module_json: str, constants: Sequence[int], best_s: float | None = None
    ) -> Measurement:
        """Checks a candidate's outputs against the unsearched workload's, then times it: the longer, the
        closer it comes to `best_s`, the best latency known of the workload."""
        try:
            operands = self._operands(module_json)
            kernel, first_s, wrong = self._checked(built, operands, constants)
            if wrong:
                return Measurement(Outcome.WRONG_RESULT, build_secs=built.build_secs, error=wrong)
            secs = kernel.timed(first_s, best_s)
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, build_secs=built.build_secs, error=_tail(error))
        return Measurement(Outcome.OK, secs, built.build_secs)

    def measure_module(self, artifact: bytes, compare: bool) -> Measurement:
        """Times a packed module for a turn, end to end with random inputs, as a user's process runs it: the
        calling thread is left to the system. To `compare`, only if it computes what its reference does."""
        try:
            rng = np.random.default_rng(SEED)
            specs = unpack(artifact)[1].inputs
            inputs = [self._tensor(random_array(spec.shape, spec.dtype, rng)) for spec in specs]
            # First, and gone before the other is loaded: a small device has no room for both.
            expected = self._expected(reference_of(artifact) if compare else None, inputs)
            machine = self._machine(unpack(artifact)[0])
            if expected and (wrong := difference(expected, _arrays(machine["main"](*inputs)))):
                error = f"not what the untuned model computes: {wrong}"
                return Measurement(Outcome.WRONG_RESULT, error=error)
            secs = _turn(machine["main"], inputs, self._device)
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, error=_tail(error))
        return Measurement(Outcome.OK, secs)

    def self_check(self) -> None:
        """Compiles, runs and verifies a tiny kernel. Raises RuntimeError if the machine can't be trusted."""
        module = _one_block(_probe()) if self._on_gpu else _probe()
        given = np.arange(64, dtype="float32")
        arguments = [self._tensor(given), self._tensor(np.zeros(64, dtype="float32"))]
        tvm.compile(module, target=self._target)["main"](*arguments)
        if not np.array_equal(arguments[1].numpy(), given * 2):
            raise RuntimeError("the probe kernel computed a wrong result on this machine")

    def _machine(self, library: bytes, allocator: str = "pooled") -> relax.VirtualMachine:
        """A loaded library; its memory is free again as soon as nothing refers to it, except what a pooled
        allocator keeps for the next."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.so"
            path.write_bytes(library)
            # Once it is loaded, the file is needed no more. TVM's own load_module never frees a library.
            loaded = tvm_ffi.load_module(str(path), keep_module_alive=False)
            return relax.VirtualMachine(loaded, self._device, memory_cfg=allocator)

    def _expected(self, reference: bytes | None, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """The outputs of the library that another one is compared with; none without it."""
        if reference is None:
            return []
        try:
            # What it computes in goes with it.
            return _arrays(self._machine(reference, "naive")["main"](*inputs))
        except Exception as error:
            raise RuntimeError(f"{REFERENCE_FAILED}{_tail(error)}") from error

    def _compile(self, module_json: str, trace: str) -> tuple[Any, Split | None]:
        """A trace replayed on a workload and compiled, without machine code yet."""
        return compiled(apply_trace(self._workload(module_json), trace), self._target)

    def _make_operands(self, module_json: str) -> Operands:
        main = self._workload(module_json)["main"]
        return Operands(main, self._device, self._reference(module_json))

    def _compile_reference(self, module_json: str) -> Any:
        module = self._workload(module_json)
        # The fallback's few safe steps share nothing with the search, and take a tenth of plain loops' time.
        # It runs on the CPU, also for a GPU's candidates.
        target = (self._target.host or "llvm") if self._on_gpu else self._target
        return tvm.compile(fallback.schedule(module), target=target)["main"]

    def _checked(
        self, built: BuiltKernel, operands: Operands, constants: Sequence[int]
    ) -> tuple[Kernel, float, str]:
        """A candidate, the seconds of its first call, and what is wrong with its outputs."""
        kernel, first_s, wrong = self._first_call(built, operands, constants)
        if wrong:
            # A candidate before it may have written into the operands.
            operands.forget()
            kernel, first_s, wrong = self._first_call(built, operands, constants)
        if wrong:
            operands.forget()
        return kernel, first_s, wrong

    def _first_call(
        self, built: BuiltKernel, operands: Operands, constants: Sequence[int]
    ) -> tuple[Kernel, float, str]:
        arguments = self._packed(built, operands.place())
        # A GPU's timer calls nothing between repeats: its caches are small beside what a network streams.
        flushed = () if self._on_gpu else constants
        kernel = Kernel(built.library, built.function, self._device, arguments, flushed)
        first_s = kernel.call()
        return kernel, first_s, operands.difference(arguments)

    def _packed(self, built: BuiltKernel, arguments: list[Any]) -> list[Any]:
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


def can_export(machine: str) -> None:
    """Tries it with a tiny kernel. Raises LinkerError, or whatever TVM raises, when libraries can't be made
    for this machine (the first part of an LLVM triple)."""
    triple = f"{machine}-linux-gnu"
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    linked(tvm.compile(_probe(), target=target), triple, linker(triple))


def _probe() -> tvm.IRModule:
    source = te.placeholder((64,), name="source")
    doubled = te.compute(source.shape, lambda i: source[i] * 2.0, name="doubled")
    return tvm.IRModule({"main": te.create_prim_func([source, doubled])})


def _one_block(module: tvm.IRModule) -> tvm.IRModule:
    """The probe's one loop as threads of a GPU."""
    schedule = Schedule(module, debug_mask="none")
    block = schedule.get_sblock("doubled")
    (loop,) = schedule.get_loops(block)
    grid, thread = schedule.split(loop, [None, 32])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return schedule.mod


def _turn(function: Callable[..., object], inputs: Sequence[Any], device: Any) -> tuple[float, ...]:
    """Wall-clock seconds of calls."""

    def call() -> float:
        start = time.perf_counter()
        function(*inputs)
        device.sync()
        return time.perf_counter() - start

    warm_s = call()
    if warm_s >= LONG_S:
        return (warm_s,)
    while warm_s < WARM_UP_S:
        warm_s += call()
    secs = [call(), call()]
    while sum(secs) < TURN_S:
        secs.append(call())
    return tuple(float(np.median(part)) for part in np.array_split(secs, min(len(secs), MAX_TURN_REPEATS)))


def _arrays(outputs: Any) -> list[NDArray[Any]]:
    """TVM gives a single output as it is, several in a sequence."""
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [array for one in outputs for array in _arrays(one)]


def _tail(error: BaseException, length: int = 2000) -> str:
    return str(error)[-length:]
