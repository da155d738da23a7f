"""MetaSchedule as its users run it on one workload: its own search, builder, runner and cost model."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, LocalBuilder, PyBuilder
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback
from tvm.s_tir.meta_schedule.runner import LocalRunner, PyRunner, RunnerFuture, RunnerInput, RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.meta_schedule.tir_integration import tune_tir
from tvm.support.tar import tar

from benchmarks.engines.metaschedule_networks import BUILD_LIMIT_S
from benchmarks.engines.metaschedule_space import quiet
from benchmarks.timing.interleaved import Block
from benchmarks.timing.measurer import Candidate, Trial
from compiler.lowering.trace import replay
from compiler.measuring.builder import BuiltKernel
from compiler.target import parse_target
from core.device import Device

# So many programs its model predicts at once when it is timed, which is as many as it measures at once.
SCORED_AT_ONCE = 64
# Its model may predict less than nothing.
LOWEST_SCORE = 1e-3
# A module scheduled by it, and what it found when it ran that.
Measured = tuple[MeasureCandidate, RunnerResult]


@dataclass(frozen=True)
class SearchRun:
    """Its trials in the order of its records, timed by itself. `seconds` passed from the call of its tuner
    until its last record, `set_up_s` of these before it built anything. `error` says why it ended early."""

    trials: tuple[Trial, ...]
    measured: tuple[Measured, ...]
    set_up_s: float
    seconds: float
    error: str = ""


def tune(module: tvm.IRModule, device: Device, trials: int, seed: int, folder: Path) -> SearchRun:
    """All of its defaults, but a longer time limit for builds, and as many cores as the device has.

    Its database and logs stay in `folder`. The environment's TVM_NUM_THREADS holds for its runner too.
    """
    quiet()
    notes = _Notes()
    error = ""
    try:
        tune_tir(
            module,
            parse_target(device.target),
            str(folder),
            trials,
            builder=_noting_builder(notes, device.cores),
            runner=_noting_runner(notes),
            measure_callbacks=[_noting_callback(notes), *MeasureCallback.create("default")],
            num_tuning_cores=device.cores,
            seed=seed + 1,  # not 0, which it takes for a wish to be surprised
        )
    except Exception as failure:  # TVM raises whatever class its C++ side names
        error = str(failure)[-500:]
    return notes.tuned(error)


class _Notes:
    """When what happened while MetaSchedule tunes, in seconds since this was made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start_s = clock()
        self._set_up_s: float | None = None
        self._ran_at: list[float] = []  # of the present batch
        self._measured: list[Measured] = []
        self._at: list[float] = []
        self._seconds = 0.0

    def building(self) -> None:
        if self._set_up_s is None:
            self._set_up_s = self._now()

    def ran(self) -> None:
        self._ran_at.append(self._now())

    def batch(self, measured: Sequence[Measured], built: Sequence[bool]) -> None:
        """What wasn't built never ran: it is known as soon as what came before it."""
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
    """The mean, by which it ranks; infinite for what failed."""
    return math.inf if result.error_msg else statistics.fmean(map(float, result.run_secs))


def _noting_builder(notes: _Notes, cores: int) -> PyBuilder:
    local = LocalBuilder(max_workers=cores, timeout_sec=BUILD_LIMIT_S)

    @derived_object
    class Builder(PyBuilder):
        def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
            notes.building()
            return local.build(build_inputs)

    return Builder()


def _noting_runner(notes: _Notes) -> PyRunner:
    """Gives LocalRunner one program at a time, which is how it runs many, to see when each is done."""
    local = LocalRunner()

    @derived_object
    class Runner(PyRunner):
        def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
            futures: list[RunnerFuture] = []
            for one in runner_inputs:
                futures += local.run([one])
                notes.ran()
            return futures

    return Runner()


def _noting_callback(notes: _Notes) -> PyMeasureCallback:
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
            notes.batch(measured, [not one.error_msg for one in builder_results])

    return Callback()


class Scorer:
    """Its cost model, trained on what it measured, with its features, on one core."""

    def __init__(self, module: tvm.IRModule, device: Device, measured: Sequence[Measured]) -> None:
        self._candidates = [candidate for candidate, _ in measured]
        self._context = TuneContext(module, target=parse_target(device.target), num_threads=1)
        self._model = XGBModel(num_warmup_samples=0, num_tuning_cores=1)
        self._model.update(self._context, self._candidates, [result for _, result in measured])

    def score(self) -> int:
        """Predicts some of what it was trained on; how many."""
        some = self._candidates[:SCORED_AT_ONCE]
        self._model.predict(self._context, some)
        return len(some)


class Predictor:
    """Its features and its cost model, with its defaults, for programs of ours."""

    def __init__(self) -> None:
        quiet()
        self._model = XGBModel(num_warmup_samples=0, adaptive_training=False)

    def learn(
        self, module: tvm.IRModule, device: Device, traces: Sequence[str], secs: Sequence[float]
    ) -> None:
        """More programs of a workload with their seconds, inf for one that failed."""
        results = [
            RunnerResult([one], None) if math.isfinite(one) else RunnerResult(None, "failed") for one in secs
        ]
        self._model.update(*_described(module, device, traces), results)

    def score(self, module: tvm.IRModule, device: Device, traces: Sequence[str]) -> NDArray[np.float64]:
        """[programs]: predicted throughput, 1 for the fastest that it was told of."""
        scores = self._model.predict(*_described(module, device, traces))
        return np.maximum(scores, LOWEST_SCORE)


def _described(
    module: tvm.IRModule, device: Device, traces: Sequence[str]
) -> tuple[TuneContext, list[MeasureCandidate]]:
    context = TuneContext(module, target=parse_target(device.target))
    return context, [MeasureCandidate(replay(module, trace), []) for trace in traces]


class Timer:
    """Times programs that take the workload's arguments as its tuner does: by its runner, in a process of its
    own, with its own repeats."""

    def __init__(self, module: tvm.IRModule, folder: Path) -> None:
        """Built programs go into `folder`."""
        self._arguments = ArgInfo.from_prim_func(module["main"])
        self._runner = LocalRunner()
        self._folder = folder

    def timing(self, built: BuiltKernel) -> MetaScheduleTiming:
        """A contestant; what is built packs no arguments."""
        path = Path(tempfile.mkdtemp(dir=self._folder)) / "program.tar"
        built.library.mod.export_library(str(path), fcompile=tar)
        return MetaScheduleTiming(self._runner, RunnerInput(str(path), "cpu", self._arguments))


@dataclass(frozen=True)
class MetaScheduleTiming:
    runner: LocalRunner
    given: RunnerInput

    def time_block(self, _block: Block) -> Sequence[float]:
        """One measurement of its own. Raises RuntimeError when it fails."""
        result = self.runner.run([self.given])[0].result()
        if result.error_msg:
            raise RuntimeError(result.error_msg)
        return [_seconds(result)]
