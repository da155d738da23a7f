"""Verify and time built candidates and whole models in a worker's child.

A candidate is timed as it will be deployed, so its constants are packed first. A network streams its
constants (weights) through the caches, while its activations stay there. So on a CPU, constants are flushed
from the caches between repeats, and the threads write the activations again. On a GPU, a CUDA graph launches
the candidate with another copy of the constants each time.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import starmap
from pathlib import Path
from typing import IO, Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax

from compiler import fallback
from compiler.codegen.pipeline import UNTUNED
from compiler.constants.packing import PACK
from compiler.gpus import read_attributes
from compiler.importing.spec import NARROW
from compiler.importing.values import from_storage
from compiler.measuring.builder import ERROR_CHARS, BuiltKernel, bind, doubling_kernel
from compiler.measuring.clocks import GpuClocks
from compiler.measuring.core_speed import CoreSpeed, reference_timer
from compiler.measuring.cuda_errors import explain
from compiler.measuring.gpu_comparison import GpuComparison
from compiler.measuring.microkernels import rewriting_kernel
from compiler.measuring.operands import Operands, ReferencePrograms
from compiler.measuring.outputs import changes_likewise, compare_outputs, nudged, own_changes
from compiler.measuring.random_inputs import InputKind, Parameter
from compiler.measuring.rounding import Rounding, nudge_recomputed
from compiler.measuring.timing import (
    CallTimer,
    GraphTimer,
    TimedKernel,
    Timer,
    WorkingSet,
    prepares_caches,
)
from compiler.measuring.whole_models import call_for, time_calls, used_bytes
from compiler.packaging.arrays import as_npz, inputs_of
from compiler.packaging.artifact import (
    REFERENCE_FAILED,
    Manifest,
    open_artifact,
    open_inputs,
    open_reference,
)
from compiler.packaging.cuda import load_cuda
from compiler.packaging.library import KernelLibrary, LibraryError
from compiler.packaging.weights import bind_weights
from compiler.target import parse_target, target_features
from compiler.workload import from_json
from core.library_check import check_library
from core.measurement import Footprint, Measurement, Outcome
from search.sketches.half_products import adds_in_blocks

# The inputs with which whole models are compared. The last ones are also used for timing.
MODULE_INPUTS = (InputKind.LARGE, InputKind.ORDINARY)


class LocalRunner:
    """Verifies and times on this machine's CPU, or on its GPU for a CUDA target. A failed candidate is
    returned as a measurement, never raised. The environment variable `TVM_NUM_THREADS` sets the number of
    threads; TVM reads it once.
    """

    def __init__(self, target: str) -> None:
        """Raises ValueError when TVM doesn't know the target, and CudaError."""
        self._target = parse_target(target)
        self._on_gpu = self._target.kind.name == "cuda"
        if self._on_gpu:
            load_cuda()
        self._device = tvm.cuda(0) if self._on_gpu else tvm.cpu()
        self._comparison = GpuComparison(self._target, self._device) if self._on_gpu else None
        self._failed: list[Exception] = []
        self._workload = lru_cache(maxsize=64)(from_json)
        self._reference = lru_cache(maxsize=64)(self._compile_reference)
        self._operands = lru_cache(maxsize=64)(self._make_operands)

    def load(self, packed: bytes) -> BuiltKernel | Measurement:
        """Load a packed KernelLibrary that was exported for this machine. `build_s` is the exporter's build
        time.
        """
        try:
            found = KernelLibrary.unpack(packed)
            library = found.load(platform.machine())
            constants = found.packed_constants
            pack = library[PACK] if constants else None
            return BuiltKernel(library, library["main"], found.build_s, constants, pack, found.resources)
        except LibraryError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))
        except Exception as error:  # TVM's C++ code may raise any exception class
            problem = f"the library can't be loaded: {str(error)[-ERROR_CHARS:]}"
            return Measurement(Outcome.BUILD_ERROR, error=problem)

    def prepare(self, module_json: str) -> None:
        """Compile a workload's reference before `run`. If that fails, `run` fails too. Several threads may
        call this at the same time.
        """
        with contextlib.suppress(Exception):
            self._reference(module_json)

    def run(
        self,
        built: BuiltKernel,
        module_json: str,
        constants: Sequence[int],
        best_s: float | None = None,
        model_bytes: int = 0,
    ) -> Measurement:
        """Compare a candidate's outputs with the reference's outputs, then time it.

        The closer it comes to `best_s`, the workload's best known latency, the longer it is timed.
        `model_bytes` is the size of the model's constants; 0 if unknown.
        """
        try:
            if self._on_gpu:
                self._working_set.resize(model_bytes)
            operands = self._operands(module_json)
            kernel, first_s, wrong = self._first_calls(built, operands, constants)
            if wrong:
                # An earlier candidate may have written into the operands, so try again with new ones.
                operands.forget()
                kernel, first_s, wrong = self._first_calls(built, operands, constants)
            if not wrong:
                secs, doubt, speed = self._steady(lambda: kernel.timed(first_s, best_s))
                # The last call has to be right, too: earlier calls may have left state behind.
                if wrong := operands.difference(InputKind.ORDINARY, kernel.arguments):
                    wrong = f"after several calls, {wrong}"
            if wrong:
                operands.forget()
                return Measurement(Outcome.WRONG_RESULT, (), built.build_s, wrong, resources=built.resources)
        except Exception as error:
            return replace(self._failure(error, built.build_s), resources=built.resources)
        return Measurement(Outcome.OK, secs, built.build_s, doubt, built.resources, speed=speed)

    def measure_module(self, artifact: IO[bytes], compare: bool) -> Measurement:
        """Time a packed model end to end with random inputs. As in a user's process, the operating system
        chooses the calling thread's core. With `compare`, the model is timed only if its outputs agree with
        the artifact's reference. They are compared again afterwards.
        """
        try:
            library, manifest = open_artifact(artifact)
            specs = [Parameter(spec.shape, spec.storage) for spec in manifest.inputs]
            kinds = MODULE_INPUTS if compare else MODULE_INPUTS[-1:]
            drawn = [kind.arrays(specs) for kind in kinds]
            inputs = [[self._tensor(array) for array in arrays] for arrays in drawn]
            # The reference runs and is freed before the library is loaded, because a small device has no
            # memory for both.
            reference = open_reference(artifact) if compare else None
            expected = [] if reference is None else self._reference_outputs(reference, inputs)
            used_before = used_bytes(self._device)
            main, load_s = self._load_main(library)
            changes: list[float] = []
            wrong = _difference(main, inputs, expected, manifest)
            if wrong and reference is not None and manifest.computed_in == "quantized":
                moved = [[self._tensor(nudged(array)) for array in arrays] for arrays in drawn]
                after_nudge = self._reference_outputs(reference, moved)
                pairs = zip(_typed(expected, manifest), _typed(after_nudge, manifest), strict=True)
                # Large inputs are at the ends of the first steps, so a nudge doesn't move them.
                changes = [max(each) for each in zip(*starmap(own_changes, pairs), strict=True)]
                wrong = _difference(main, inputs, expected, manifest, changes)
            if not wrong:
                secs, doubt, speed = self._steady(lambda: time_calls(lambda: self._call(main, inputs[-1])))
                memory_bytes = max(used_bytes(self._device) - used_before, 0)
                if wrong := _difference(main, inputs[-1:], expected[-1:], manifest, changes):
                    wrong = f"after several calls, {wrong}"
            if wrong:
                error = f"not what the untuned model computes: {wrong}"
                return Measurement(Outcome.WRONG_RESULT, error=error)
        except Exception as error:
            return self._failure(error)
        footprint = Footprint(load_s, memory_bytes)
        return Measurement(Outcome.OK, secs, error=doubt, footprint=footprint, speed=speed)

    def call_module(self, artifact: IO[bytes], seconds: float) -> tuple[float, float, int] | Measurement:
        """Call a packed model with random inputs; see `call_for`."""
        try:
            library, manifest = open_artifact(artifact)
            specs = [Parameter(spec.shape, spec.storage) for spec in manifest.inputs]
            inputs = [self._tensor(array) for array in MODULE_INPUTS[-1].arrays(specs)]
            main, _ = self._load_main(library)
            return call_for(lambda: self._call(main, inputs), seconds)
        except Exception as error:
            return self._failure(error)

    def infer(self, packed: IO[bytes], max_bytes: int) -> tuple[bytes, float] | Measurement:
        """Call a packed module once with the inputs that are packed with it.

        Return the outputs as an .npz file of at most `max_bytes`, and the seconds of the call.
        """
        try:
            library, manifest = open_artifact(packed)
            file = open_inputs(packed)
            if file is None:
                return Measurement(Outcome.RUN_ERROR, error="no inputs are packed with the artifact")
            arrays = inputs_of(file, manifest.inputs, "the file of inputs")
            inputs = [
                self._tensor(array.view(spec.storage) if spec.dtype in NARROW else array)
                for spec, array in zip(manifest.inputs, arrays, strict=True)
            ]
            main, _ = self._load_main(library)
            start = time.perf_counter()
            computed = main(*inputs)
            self._device.sync()
            secs = time.perf_counter() - start
            outputs = [
                from_storage(array, spec.dtype)
                for spec, array in zip(manifest.outputs, _arrays(computed), strict=True)
            ]
            data = as_npz(manifest.outputs, outputs)
        except Exception as error:
            return self._failure(error)
        if len(data) > max_bytes:
            problem = f"the outputs have {len(data)} bytes; the limit is {max_bytes}: give smaller inputs"
            return Measurement(Outcome.RUN_ERROR, error=problem)
        return data, secs

    def self_check(self) -> None:
        """Compile, run and verify a tiny kernel. Raises RuntimeError if its result is wrong."""
        module = bind(doubling_kernel()) if self._on_gpu else doubling_kernel()
        source = np.arange(64, dtype="float32")
        arguments = [self._tensor(source), self._tensor(np.zeros(64, dtype="float32"))]
        with self._target:
            tvm.compile(module, target=self._target)["main"](*arguments)
        if not np.array_equal(arguments[1].numpy(), source * 2):
            raise RuntimeError("the probe kernel computed a wrong result on this machine")

    def _load_main(self, library: IO[bytes], allocator: str = "pooled") -> tuple[Callable[..., Any], float]:
        """Return the function that runs a model's library, and the seconds to load it. The function's memory
        is freed with it, except for the pooled allocator's reserve.

        Raises WeightsError, and SymbolError if the library calls functions that no compiled program needs.
        """
        check_library(library)
        library.seek(0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.so"
            with path.open("wb") as file:
                shutil.copyfileobj(library, file)
            # tvm.runtime.load_module would keep the library for the life of the process.
            start = time.perf_counter()
            loaded = tvm_ffi.load_module(str(path), keep_module_alive=False)
            machine = relax.VirtualMachine(loaded, self._device, memory_cfg=allocator)
            main = bind_weights(machine["main"], path)
            return main, time.perf_counter() - start

    def _call(self, function: Callable[..., object], inputs: Sequence[Any]) -> None:
        """Call a function and wait until the device has computed its outputs."""
        function(*inputs)
        self._device.sync()

    def _reference_outputs(
        self, reference: IO[bytes], inputs: Sequence[Sequence[Any]]
    ) -> list[list[NDArray[Any]]]:
        """Run the reference with each set of inputs. Its allocator frees its memory. Raises RuntimeError."""
        try:
            main, _ = self._load_main(reference, "naive")
            return [_arrays(main(*each)) for each in inputs]
        except Exception as error:
            raise RuntimeError(f"{REFERENCE_FAILED}{str(error)[-ERROR_CHARS:]}") from error

    def _make_operands(self, module_json: str) -> Operands:
        main = self._workload(module_json)["main"]
        return Operands(main, self._device, self._reference(module_json), self._comparison)

    def _compile_reference(self, module_json: str) -> ReferencePrograms:
        module = self._workload(module_json)
        compute = self._compile_trusted(module)
        in_blocks = adds_in_blocks(target_features(self._target))
        rounding = Rounding.of(module["main"], in_blocks=in_blocks)
        nudged = nudge_recomputed(module) if rounding.amplified else module
        compute_nudged = compute if nudged is module else self._compile_trusted(nudged)
        return ReferencePrograms(compute, compute_nudged, rounding)

    def _compile_trusted(self, module: tvm.IRModule) -> Any:
        # The fallback schedule's few safe steps are independent of the search, and take a tenth of the time
        # of unscheduled loops. The reference runs on the CPU, also for GPU candidates.
        target = (self._target.host or "llvm") if self._on_gpu else self._target
        try:
            return tvm.compile(fallback.schedule(module), target=target, tir_pipeline=UNTUNED)["main"]
        except Exception:  # TVM's C++ code may raise any exception class
            return tvm.compile(module, target=target, tir_pipeline=UNTUNED)["main"]

    def _first_calls(
        self, built: BuiltKernel, operands: Operands, constants: Sequence[int]
    ) -> tuple[TimedKernel, float, str]:
        """Call the candidate once with each kind of arguments, ordinary ones last. Return the candidate with
        these arguments, the seconds of its last call, and the error in its outputs ("" if they are right).
        """
        for kind in sorted(operands.kinds, key=InputKind.ORDINARY.__eq__):
            kernel = self._with_arguments(built, operands.arguments(kind), constants)
            first_s = kernel.call()
            if wrong := operands.difference(kind, kernel.arguments):
                break
        return kernel, first_s, wrong

    def _with_arguments(
        self, built: BuiltKernel, arguments: list[Any], constants: Sequence[int]
    ) -> TimedKernel:
        """Return the candidate with arguments, after packing constants."""
        constants_to_pack = built.packed_constants
        if constants_to_pack is not None:
            packed = [
                tvm.runtime.empty(shape, dtype, self._device)
                for shape, dtype in zip(constants_to_pack.shapes, constants_to_pack.dtypes, strict=True)
            ]
            built.pack(*(arguments[i] for i in constants_to_pack.operands), *packed)
            for i, tensor in zip(constants_to_pack.operands, packed, strict=True):
                arguments[i] = tensor
        timer: Timer
        passed = built.arguments(arguments)
        if self._on_gpu:
            timer = GraphTimer(built.function, self._device, passed, constants, self._working_set)
        else:
            prepare = prepares_caches(len(arguments), constants, self._rewrite)
            timer = CallTimer(built.library, self._device, passed, prepare, is_cold=bool(constants))
        return TimedKernel(partial(built.function, *passed), self._device, arguments, timer)

    @cached_property
    def _rewrite(self) -> Callable[..., None]:
        compiled: Callable[..., None] = tvm.compile(rewriting_kernel(), target=self._target)["main"]
        return compiled

    @cached_property
    def _speed(self) -> CoreSpeed:
        return CoreSpeed(reference_timer(self._target))

    @cached_property
    def _clocks(self) -> GpuClocks:
        return GpuClocks()

    @cached_property
    def _working_set(self) -> WorkingSet:
        return WorkingSet(self._device, read_attributes()["l2_bytes"])

    def _steady(
        self, measure: Callable[[], tuple[float, ...]]
    ) -> tuple[tuple[float, ...], str, float | None]:
        """Measure. Also return the reason to doubt the result, and the speed of the CPU's cores. Without a
        reason, the text is empty.
        """
        if not self._on_gpu:
            measured, speed = self._speed.watch(measure)
            return measured, "", speed
        measured, held_back = self._clocks.steady(measure)
        return measured, f"the GPU's clocks were held back: {held_back}" if held_back else "", None

    def _failure(self, error: Exception, build_s: float = 0.0) -> Measurement:
        """Return the measurement of a trial that raised an error."""
        explained = explain(error) if self._on_gpu else None
        if explained is None:
            return Measurement(Outcome.RUN_ERROR, build_s=build_s, error=str(error)[-ERROR_CHARS:])
        # After an error, CUDA can't free memory, and TVM would abort this process. So keep everything that
        # the failed call refers to, until the agent has the reply and replaces this process.
        self._failed.append(error)
        outcome, line = explained
        return Measurement(outcome, build_s=build_s, error=line)

    def _tensor(self, array: NDArray[Any]) -> Any:
        return tvm.runtime.tensor(array, device=self._device)


def _difference(
    main: Callable[..., object],
    inputs: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[NDArray[Any]]],
    manifest: Manifest,
    changes: Sequence[float] = (),
) -> str:
    """Describe the first wrong output of a model; "" if all are right for all inputs.

    Outputs that differ as much as the expected ones change by themselves are right, too.
    """
    padded_axes = [spec.padded_axis for spec in manifest.outputs]
    for each, right in zip(inputs, _typed(expected, manifest), strict=False):
        (found,) = _typed([_arrays(main(*each))], manifest)
        wrong = compare_outputs(right, found, manifest.computed_in, padded_axes)
        if wrong and not (changes and changes_likewise(right, found, changes)):
            return wrong
    return ""


def _typed(sets: Sequence[Sequence[NDArray[Any]]], manifest: Manifest) -> list[list[NDArray[Any]]]:
    """Return a model's outputs for each set of inputs in the types that the manifest gives them."""
    return [
        [from_storage(array, spec.dtype) for spec, array in zip(manifest.outputs, outputs, strict=True)]
        for outputs in sets
    ]


def _arrays(outputs: Any) -> list[NDArray[Any]]:
    """Return a model's outputs as arrays. TVM returns a single output bare, several in a sequence."""
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [array for one in outputs for array in _arrays(one)]
