"""The runner of deployed workers: the compiler. Only a child imports this module, because it imports TVM."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from threading import Barrier
from typing import IO

from compiler.codegen.nvcc import compiler_version
from compiler.gpus import detect_gpu
from compiler.measuring.builder import BuiltKernel, LocalBuilder, check_export
from compiler.measuring.calibration import calibrate
from compiler.measuring.cores import bind_thread_pool
from compiler.measuring.gpu_calibration import calibrate_gpu
from compiler.measuring.runner import LocalRunner
from compiler.measuring.whole_models import OnnxRuntimeTimer
from compiler.packaging.elf import ARCHS
from compiler.packaging.library import KernelLibrary
from compiler.target import detect_device
from core.device import Device, cuda_platform
from core.measurement import Measurement, Outcome
from core.profile import Profile
from proto.messages import MAX_OUTPUTS_BYTES
from worker.runner.interface import BuildRequest, Calls, Exported, Inferred, Notify, Platforms


class CompilerRunner:
    """Measures on this machine with TVM, or exports for other machines; see `worker.runner.interface.Runner`.

    `TVM_NUM_THREADS` in the environment must equal `threads`. Belongs to the thread that made it.
    """

    def __init__(self, threads: int, without: Sequence[str] = ()) -> None:
        """Raises FeatureError if this machine lacks an instruction set in `without` anyway."""
        bind_thread_pool(threads)
        self._threads = threads
        self._device = self._detect(without)
        self._builder = lru_cache(maxsize=4)(LocalBuilder)  # the reference compiler of each target
        self._runner = lru_cache(maxsize=4)(LocalRunner)
        self._onnx_runtime = OnnxRuntimeTimer(threads)
        self._builders = ThreadPoolExecutor(threads, thread_name_prefix="build")
        self._built: dict[int, tuple[BuildRequest, BuiltKernel | KernelLibrary | Measurement]] = {}

    def check(self) -> Device:
        self._runner(self._device.target).self_check()
        # All threads start now, because their stacks and heaps would count as growth caused by candidates.
        all_started = Barrier(self._threads)
        for _ in self._builders.map(lambda _: all_started.wait(), range(self._threads)):
            pass
        return self._device

    def calibrate(self, budget_s: float) -> Profile:
        return calibrate(self._device, budget_s)

    def _detect(self, without: Sequence[str]) -> Device:
        return detect_device(self._threads, without)

    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        def build(number: int) -> bool:
            begun(number)
            built = self._build(requests[number])
            self._built[number] = requests[number], built
            ended(number)
            return isinstance(built, Measurement)

        def prepare(workload: tuple[str, str]) -> None:
            target, module_json = workload
            with contextlib.suppress(ValueError):  # `build` has reported it
                self._runner(target).prepare(module_json)

        refused = self._builders.map(build, requests)
        workloads = dict.fromkeys(
            (request.target, request.module_json) for request in requests.values() if not request.export
        )
        for _ in self._builders.map(prepare, workloads):
            pass
        return [number for number, is_refused in zip(requests, refused, strict=True) if is_refused]

    def platforms(self) -> Platforms:
        """Return the platforms, this machine first. Linking for each fills the linkers' caches, because that
        would exceed a candidate's time limit."""
        names, problems = [], []
        cuda = compiler_version()
        for arch in sorted(ARCHS, key=lambda arch: arch != platform.machine()):
            try:
                check_export(arch)
                names.append(arch)
                if cuda:
                    check_export(arch, on_gpu=True)
                    names.append(cuda_platform(arch, cuda))
            except Exception as error:  # TVM's C++ code may raise any exception class
                problems.append(str(error)[-500:])
        return Platforms(tuple(names), tuple(problems))

    def run(self, number: int, best_s: float | None) -> Measurement:
        request, built = self._built.pop(number)
        if isinstance(built, Measurement):
            return built
        if isinstance(built, KernelLibrary):
            return Measurement(Outcome.RUN_ERROR, error="it was built for another machine")
        runner = self._runner(request.target)
        return runner.run(built, request.module_json, request.constants, best_s, request.model_bytes)

    def export(self, number: int) -> Exported | Measurement:
        _, built = self._built.pop(number)
        if isinstance(built, KernelLibrary):
            return Exported(built.pack(), built.build_s)
        assert isinstance(built, Measurement), "the agent exports only candidates that were built for export"
        return built

    def measure_module(self, artifact: IO[bytes], compare: bool) -> Measurement:
        return self._runner(self._device.target).measure_module(artifact, compare)

    def call_module(self, artifact: IO[bytes], seconds: float) -> Calls | Measurement:
        found = self._runner(self._device.target).call_module(artifact, seconds)
        return found if isinstance(found, Measurement) else Calls(*found)

    def infer(self, packed: IO[bytes]) -> Inferred | Measurement:
        found = self._runner(self._device.target).infer(packed, MAX_OUTPUTS_BYTES)
        return found if isinstance(found, Measurement) else Inferred(*found)

    def measure_onnx(self, model: IO[bytes], shapes: str) -> Measurement:
        given = {name: tuple(shape) for name, shape in json.loads(shapes).items()}
        return self._onnx_runtime.time(model, given)

    def _build(self, request: BuildRequest) -> BuiltKernel | KernelLibrary | Measurement:
        try:
            if request.library is not None:
                return self._runner(request.target).load(Path(request.library).read_bytes())
            builder = self._builder(request.target)
            if request.export:
                return builder.export(request.module_json, request.trace)
            return builder.build(request.module_json, request.trace)
        except ValueError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))


class GpuRunner(CompilerRunner):
    """Measures on the first GPU that CUDA shows this process. Candidates are built, and references run, on
    `threads` cores of its host."""

    def calibrate(self, budget_s: float) -> Profile:
        return calibrate_gpu(self._device, budget_s)

    def _detect(self, without: Sequence[str]) -> Device:
        """Return the GPU's device. Raises CudaError and NoGpuError."""
        return detect_gpu()
