"""MetaSchedule as its users run it on one workload: with its own builder, runner and cost model."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, LocalBuilder, PyBuilder
from tvm.s_tir.meta_schedule.builder.local_builder import default_build
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback
from tvm.s_tir.meta_schedule.runner import LocalRunner, PyRunner, RunnerFuture, RunnerInput, RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.meta_schedule.tir_integration import tune_tir
from tvm.support.tar import tar

import compiler.tvmscript  # noqa: F401 - MetaSchedule imports TVM's intrinsics, which are TVMScript
from benchmarks.engines.metaschedule_networks import BUILD_LIMIT_S, RUN_LIMIT_S, prepare_intrinsics
from benchmarks.engines.metaschedule_space import quiet
from benchmarks.timing.interleaved import Block
from benchmarks.timing.measurer import Candidate, Trial
from compiler.lowering.trace import replay
from compiler.measuring.builder import BuiltKernel
from compiler.packaging.cuda import load_cuda
from compiler.target import parse_target
from core.device import Device

# The number of programs that its cost model predicts at once when it is timed: its batch size.
SCORED_AT_ONCE = 64
# Its model may predict negative scores.
LOWEST_SCORE = 1e-3
# A scheduled module, and its runner's result.
Measured = tuple[MeasureCandidate, RunnerResult]


@dataclass(frozen=True)
class SearchRun:
    """MetaSchedule's trials in the order of its records, with its timings.

    `seconds` is the time from the call of its tuner until its last record, and `set_up_s` the part before its
    first build. `error` says why it ended early.
    """

    trials: tuple[Trial, ...]
    measured: tuple[Measured, ...]
    set_up_s: float
    seconds: float
    error: str = ""


def tune(
    module: tvm.IRModule,
    device: Device,
    trials: int,
    seed: int,
    folder: Path,
    cores: int | None = None,
) -> SearchRun:
    """Run its tuner with defaults, longer time limits, and `cores` cores, by default the device's.

    Its database and logs stay in `folder`. Its runner obeys TVM_NUM_THREADS in the environment, too.
    """
    quiet()
    timeline = _Timeline()
    error = ""
    try:
        tune_tir(
            module,
            parse_target(device.target),
            str(folder),
            trials,
            builder=_recording_builder(timeline, cores or device.cores, device),
            runner=_recording_runner(timeline, device),
            measure_callbacks=[_recording_callback(timeline), *MeasureCallback.create("default")],
            num_tuning_cores=cores or device.cores,
            seed=seed + 1,  # MetaSchedule would replace a seed of 0 by a random one
        )
    except Exception as failure:  # TVM's C++ code may raise any exception class
        error = str(failure)[-500:]
    return timeline.tuned(error)


class _Timeline:
    """Records the time of each event while MetaSchedule tunes, in seconds since its creation."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start_s = clock()
        self._set_up_s: float | None = None
        self._ran_at: list[float] = []  # in the current batch
        self._measured: list[Measured] = []
        self._at: list[float] = []
        self._seconds = 0.0

    def building(self) -> None:
        if self._set_up_s is None:
            self._set_up_s = self._now()

    def ran(self) -> None:
        self._ran_at.append(self._now())

    def batch(self, measured: Sequence[Measured], built: Sequence[bool]) -> None:
        """Record a batch. A candidate that failed to build gets the time of the previous one."""
        stamps = iter(self._ran_at)
        at_s = self._at[-1] if self._at else self._set_up_s or 0.0
        for is_built in built:
            at_s = next(stamps) if is_built else at_s
            self._at.append(at_s)
        self._measured += measured
        self._ran_at.clear()
        self._seconds = self._now()

    def tuned(self, error: str) -> SearchRun:
        trials = [
            Trial(Candidate.scheduled(candidate.sch.mod), _seconds(result), at_s)
            for (candidate, result), at_s in zip(self._measured, self._at, strict=True)
        ]
        return SearchRun(tuple(trials), tuple(self._measured), self._set_up_s or 0.0, self._seconds, error)

    def _now(self) -> float:
        return self._clock() - self._start_s


def _seconds(result: RunnerResult) -> float:
    """Return the mean, by which MetaSchedule ranks; inf for a failure."""
    return math.inf if result.error_msg else statistics.fmean(map(float, result.run_secs))


def _recording_builder(timeline: _Timeline, cores: int, device: Device) -> PyBuilder:
    local = LocalBuilder(max_workers=cores, timeout_sec=BUILD_LIMIT_S, initializer=prepare_intrinsics)
    if device.gpu is not None:
        local = LocalBuilder(
            max_workers=cores, timeout_sec=BUILD_LIMIT_S, f_build=_build_for_gpu, initializer=_prepare_for_gpu
        )

    @derived_object
    class Builder(PyBuilder):
        def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
            timeline.building()
            return local.build(build_inputs)

    return Builder()


def _prepare_for_gpu() -> None:
    prepare_intrinsics()
    load_cuda()


def _build_for_gpu(module: tvm.IRModule, target: tvm.target.Target, params: Any) -> tvm.runtime.Module:
    """Build as MetaSchedule does, with the target as the current one, which nvcc's call needs."""
    with target:
        return default_build(module, target, params)


def _recording_runner(timeline: _Timeline, device: Device) -> PyRunner:
    """Return a runner that passes LocalRunner one program at a time, and records when each is done."""
    local = LocalRunner(timeout_sec=RUN_LIMIT_S, initializer=load_cuda if device.gpu else None)

    @derived_object
    class Runner(PyRunner):
        def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
            futures: list[RunnerFuture] = []
            for one in runner_inputs:
                futures += local.run([one])
                timeline.ran()
            return futures

    return Runner()


def _recording_callback(timeline: _Timeline) -> PyMeasureCallback:
    @derived_object
    class Callback(PyMeasureCallback):
        def apply(
            self,
            task_scheduler: object,
            task_id: int,
            measure_candidates: list[MeasureCandidate],
            builder_results: list[BuilderResult],
            runner_results: list[RunnerResult],
        ) -> None:
            measured = list(zip(measure_candidates, runner_results, strict=True))
            timeline.batch(measured, [not one.error_msg for one in builder_results])

    return Callback()


class Scorer:
    """Its cost model with its features, trained on its measurements, on one core."""

    def __init__(self, module: tvm.IRModule, device: Device, measured: Sequence[Measured]) -> None:
        self._candidates = [candidate for candidate, _ in measured]
        self._context = TuneContext(module, target=parse_target(device.target), num_threads=1)
        self._model = XGBModel(num_warmup_samples=0, num_tuning_cores=1)
        self._model.update(self._context, self._candidates, [result for _, result in measured])

    def score(self) -> int:
        """Predict some of the programs that it was trained on. Return their number."""
        some = self._candidates[:SCORED_AT_ONCE]
        self._model.predict(self._context, some)
        return len(some)


class Predictor:
    """MetaSchedule's features and cost model with defaults, for our programs."""

    def __init__(self) -> None:
        quiet()
        self._model = XGBModel(num_warmup_samples=0, adaptive_training=False)

    def learn(
        self, module: tvm.IRModule, device: Device, traces: Sequence[str], secs: Sequence[float]
    ) -> None:
        """Train on further programs of a workload and their seconds, inf for a failure."""
        results = [
            RunnerResult([one], None) if math.isfinite(one) else RunnerResult(None, "failed") for one in secs
        ]
        self._model.update(*_candidates(module, device, traces), results)

    def score(self, module: tvm.IRModule, device: Device, traces: Sequence[str]) -> NDArray[np.float64]:
        """Return predicted throughputs [programs], relative to the fastest program of the training data."""
        scores = self._model.predict(*_candidates(module, device, traces))
        return np.maximum(scores, LOWEST_SCORE)


def _candidates(
    module: tvm.IRModule, device: Device, traces: Sequence[str]
) -> tuple[TuneContext, list[MeasureCandidate]]:
    context = TuneContext(module, target=parse_target(device.target))
    return context, [MeasureCandidate(replay(module, trace), []) for trace in traces]


class Timer:
    """Times programs as MetaSchedule's tuner does: with its runner and repeats, in a separate process."""

    def __init__(self, module: tvm.IRModule, folder: Path) -> None:
        """Built programs are written into `folder`."""
        self._arguments = ArgInfo.from_prim_func(module["main"])
        self._runner = LocalRunner(timeout_sec=RUN_LIMIT_S)
        self._folder = folder

    def timing(self, built: BuiltKernel) -> MetaScheduleTiming:
        """Return a contestant for a built kernel without packed arguments."""
        path = Path(tempfile.mkdtemp(dir=self._folder)) / "program.tar"
        built.library.mod.export_library(str(path), fcompile=tar)
        return MetaScheduleTiming(self._runner, RunnerInput(str(path), "cpu", self._arguments))


@dataclass(frozen=True)
class MetaScheduleTiming:
    runner: LocalRunner
    given: RunnerInput

    def time_block(self, _block: Block) -> Sequence[float]:
        """Return one measurement of its runner. Raises RuntimeError when it fails."""
        result = self.runner.run([self.given])[0].result()
        if result.error_msg:
            raise RuntimeError(result.error_msg)
        return [_seconds(result)]
