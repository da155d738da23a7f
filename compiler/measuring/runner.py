"""Verify and time candidates and whole modules: what a worker's child does with what was built.

A candidate is timed as it will be deployed: its constants are packed before, and between the repeats the
constants of the model (weights) are flushed from the caches, because a network streams them, while the
activations stay.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax
from tvm.s_tir import Schedule

from compiler import fallback
from compiler.measuring.builder import ERROR_CHARS, BuiltKernel, doubling_kernel
from compiler.measuring.operands import SEED, Operands, random_array
from compiler.measuring.outputs import compare_outputs
from compiler.measuring.timing import TimedKernel
from compiler.packaging.artifact import REFERENCE_FAILED, unpack, unpack_reference
from compiler.packaging.library import KernelLibrary, LibraryError
from compiler.target import parse_target
from compiler.workload import from_json
from core.measurement import Measurement, Outcome

# A whole model is called for WARM_UP_S until it is warm, then timed for TURN_S. It gets at most
# MAX_TURN_REPEATS repeats: where there were more calls, a repeat is the median of several.
WARM_UP_S, TURN_S = 0.1, 0.3
MAX_TURN_REPEATS = 40
# A model that takes this long is called once: cold caches and sleeping threads don't matter then.
LONG_S = 1.0


class LocalRunner:
    """Verifies and times on this machine's CPU, or on its GPU for a CUDA target. A bad candidate comes back
    as a measurement, never as an exception.

    `TVM_NUM_THREADS` in the environment sets how many threads candidates run on; TVM reads it once.
    """

    def __init__(self, target: str) -> None:
        """Raises ValueError when TVM doesn't know the target."""
        self._target = parse_target(target)
        self._on_gpu = self._target.kind.name == "cuda"
        self._device = tvm.cuda(0) if self._on_gpu else tvm.cpu()
        self._workload = lru_cache(maxsize=64)(from_json)
        self._reference = lru_cache(maxsize=64)(self._compile_reference)
        self._operands = lru_cache(maxsize=64)(self._make_operands)

    def load(self, packed: bytes) -> BuiltKernel | Measurement:
        """Load a packed KernelLibrary that was exported for this machine; build_secs are the exporter's."""
        try:
            found = KernelLibrary.unpack(packed)
            library = found.load(platform.machine())
            return BuiltKernel(library, library["main"], found.build_secs, found.packed_constants)
        except LibraryError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))
        except Exception as error:  # TVM raises whatever class its C++ side names
            problem = f"the library can't be loaded: {str(error)[-ERROR_CHARS:]}"
            return Measurement(Outcome.BUILD_ERROR, error=problem)

    def prepare(self, module_json: str) -> None:
        """Compile the reference of a workload ahead of `run`. If that fails, so does `run`.

        Several threads may do so at the same time.
        """
        with contextlib.suppress(Exception):
            self._reference(module_json)

    def run(
        self, built: BuiltKernel, module_json: str, constants: Sequence[int], best_s: float | None = None
    ) -> Measurement:
        """Compare a candidate's outputs with the reference's, then time it.

        The closer it comes to `best_s`, the best latency known of the workload, the longer it is timed.
        """
        try:
            operands = self._operands(module_json)
            kernel, first_s, wrong = self._first_call(built, operands, constants)
            if wrong:
                # An earlier candidate may have written into the operands: try again with new ones.
                operands.forget()
                kernel, first_s, wrong = self._first_call(built, operands, constants)
            if wrong:
                operands.forget()
                return Measurement(Outcome.WRONG_RESULT, build_secs=built.build_secs, error=wrong)
            secs = kernel.timed(first_s, best_s)
        except Exception as error:
            problem = str(error)[-ERROR_CHARS:]
            return Measurement(Outcome.RUN_ERROR, build_secs=built.build_secs, error=problem)
        return Measurement(Outcome.OK, secs, built.build_secs)

    def measure_module(self, artifact: bytes, compare: bool) -> Measurement:
        """Time a packed module end to end with random inputs, as a user's process runs it: the operating
        system chooses the calling thread's core.

        With `compare`, it is timed only if it computes what the reference in the artifact does.
        """
        try:
            rng = np.random.default_rng(SEED)
            specs = unpack(artifact)[1].inputs
            inputs = [self._tensor(random_array(spec.shape, spec.dtype, rng)) for spec in specs]
            # The reference runs and is freed before the library is even unpacked: a small device has no room
            # for both.
            reference = unpack_reference(artifact) if compare else None
            expected = [] if reference is None else self._reference_outputs(reference, inputs)
            del reference
            machine = self._load_machine(unpack(artifact)[0])
            if expected and (wrong := compare_outputs(expected, _arrays(machine["main"](*inputs)))):
                error = f"not what the untuned model computes: {wrong}"
                return Measurement(Outcome.WRONG_RESULT, error=error)
            secs = _time_calls(machine["main"], inputs, self._device)
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, error=str(error)[-ERROR_CHARS:])
        return Measurement(Outcome.OK, secs)

    def self_check(self) -> None:
        """Compile, run and verify a tiny kernel. Raises RuntimeError when it computes a wrong result."""
        module = doubling_kernel()
        if self._on_gpu:
            schedule = Schedule(module, debug_mask="none")
            (loop,) = schedule.get_loops(schedule.get_sblock("doubled"))
            grid, thread = schedule.split(loop, [None, 32])
            schedule.bind(grid, "blockIdx.x")
            schedule.bind(thread, "threadIdx.x")
            module = schedule.mod
        source = np.arange(64, dtype="float32")
        arguments = [self._tensor(source), self._tensor(np.zeros(64, dtype="float32"))]
        tvm.compile(module, target=self._target)["main"](*arguments)
        if not np.array_equal(arguments[1].numpy(), source * 2):
            raise RuntimeError("the probe kernel computed a wrong result on this machine")

    def _load_machine(self, library: bytes, allocator: str = "pooled") -> relax.VirtualMachine:
        """Load a model's library. Its memory is freed with the machine, except for what the pooled allocator
        keeps for the next one."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.so"
            path.write_bytes(library)
            # tvm.runtime.load_module would keep the library for the life of the process.
            loaded = tvm_ffi.load_module(str(path), keep_module_alive=False)
            return relax.VirtualMachine(loaded, self._device, memory_cfg=allocator)

    def _reference_outputs(self, reference: bytes, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """Run the reference with an allocator that returns its memory. Raises RuntimeError."""
        try:
            return _arrays(self._load_machine(reference, "naive")["main"](*inputs))
        except Exception as error:
            raise RuntimeError(f"{REFERENCE_FAILED}{str(error)[-ERROR_CHARS:]}") from error

    def _make_operands(self, module_json: str) -> Operands:
        main = self._workload(module_json)["main"]
        return Operands(main, self._device, self._reference(module_json))

    def _compile_reference(self, module_json: str) -> Any:
        module = self._workload(module_json)
        # The fallback's few safe steps share nothing with the search, and take a tenth of plain loops' time.
        # It runs on the CPU, also for a GPU's candidates.
        target = (self._target.host or "llvm") if self._on_gpu else self._target
        return tvm.compile(fallback.schedule(module), target=target)["main"]

    def _first_call(
        self, built: BuiltKernel, operands: Operands, constants: Sequence[int]
    ) -> tuple[TimedKernel, float, str]:
        """Return the candidate with its arguments, the seconds of its first call, and what is wrong with its
        outputs (empty when nothing is)."""
        arguments = operands.place()
        constants_to_pack = built.packed_constants
        if constants_to_pack is not None:
            packed = [
                tvm.runtime.empty(shape, dtype, self._device)
                for shape, dtype in zip(constants_to_pack.shapes, constants_to_pack.dtypes, strict=True)
            ]
            built.library["pack"](*(arguments[i] for i in constants_to_pack.operands), *packed)
            for i, tensor in zip(constants_to_pack.operands, packed, strict=True):
                arguments[i] = tensor
        # A GPU's timer calls nothing between repeats: its caches are small beside what a network streams.
        flushed = () if self._on_gpu else constants
        kernel = TimedKernel(built.library, built.function, self._device, arguments, flushed)
        first_s = kernel.call()
        return kernel, first_s, operands.difference(arguments)

    def _tensor(self, array: NDArray[Any]) -> Any:
        return tvm.runtime.tensor(array, device=self._device)


def _time_calls(function: Callable[..., object], inputs: Sequence[Any], device: Any) -> tuple[float, ...]:
    """Return wall-clock seconds of calls, after a warm-up."""

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
    """Return a model's outputs: TVM gives a single one as it is, several in a sequence."""
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [array for one in outputs for array in _arrays(one)]
