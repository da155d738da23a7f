"""MetaSchedule's search space of one workload: its rules, postprocessors and search, with our runner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.measure_callback import AddToDatabase, UpdateCostModel
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerFuture, RunnerInput, RunnerResult
from tvm.s_tir.meta_schedule.tir_integration import tune_tir

import compiler.tvmscript  # noqa: F401 - MetaSchedule imports TVM's intrinsics, which are TVMScript
from benchmarks.timing.measurer import Candidate, ProgramMeasurer, seconds
from compiler.measuring.builder import BuiltKernel
from compiler.target import parse_target
from core.device import Device
from core.measurement import Measurement, Outcome

# More trials than are ever drawn. The strategy gets no results, so it doesn't end.
ENDLESS = 1 << 30
SAMPLED_AT_ONCE = 64


class MetaScheduleSpace:
    """PostOrderApply with the rules and postprocessors that MetaSchedule chooses for the target."""

    def __init__(self, module: tvm.IRModule, device: Device, seed: int) -> None:
        self._module = module
        self._device = device
        self._seed = seed
        self._context = TuneContext(
            module,
            target=parse_target(device.target),
            space_generator="post-order-apply",
            search_strategy="replay-trace",
            rand_state=seed + 1,  # it takes 0 for a random seed
            num_threads=1,
        )
        self._context.pre_tuning(ENDLESS, SAMPLED_AT_ONCE)

    def sample(self) -> list[tvm.IRModule]:
        """Return up to 64 traces of its design spaces with random decisions, postprocessed.

        Traces that a postprocessor rejects are redrawn, as in its own search.
        """
        return [one.sch.mod for one in self._context.generate_measure_candidates() or ()]

    def random(self, count: int) -> list[Candidate]:
        """Return `count` random programs. Raises RuntimeError if it finds no valid one."""
        modules: list[tvm.IRModule] = []
        while len(modules) < count:
            found = self.sample()
            if not found:
                raise RuntimeError("MetaSchedule finds no valid program")
            modules += found
        return [Candidate.scheduled(module) for module in modules[:count]]

    def tune(self, trials: int, measurer: ProgramMeasurer, folder: Path) -> list[tuple[Candidate, float]]:
        """Run its evolutionary search with its cost model. Return all candidates with their seconds, in
        order.

        Its database and logs stay in `folder`.
        """
        measuring = _Measuring(measurer)
        quiet()
        tune_tir(
            self._module,
            parse_target(self._device.target),
            str(folder),
            trials,
            builder=_builder(measuring),
            runner=_runner(measuring),
            # Its default callbacks without the one that removes built files, because there are none.
            measure_callbacks=[AddToDatabase(), UpdateCostModel()],
            num_tuning_cores=self._device.cores,
            seed=self._seed + 1,
        )
        return measuring.found


def quiet() -> None:
    """Silence its tables, and remove the log handlers of an earlier tuning, which would break its set-up."""
    logging.disable(logging.INFO)
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


class _Measuring:
    """Builds and runs MetaSchedule's candidates with our measurer in this process."""

    def __init__(self, measurer: ProgramMeasurer) -> None:
        self.found: list[tuple[Candidate, float]] = []
        self._measurer = measurer
        self._built: dict[str, tuple[Candidate, BuiltKernel]] = {}

    def build(self, modules: Sequence[tvm.IRModule]) -> list[BuilderResult]:
        candidates = [Candidate.scheduled(module) for module in modules]
        return [
            self._keep(candidate, built)
            for candidate, built in zip(candidates, self._measurer.build(candidates), strict=True)
        ]

    def _keep(self, candidate: Candidate, built: BuiltKernel | Measurement) -> BuilderResult:
        """Return a name instead of a path. `run` finds the built candidate by it."""
        if isinstance(built, Measurement):
            self.found.append((candidate, seconds(built)))
            return BuilderResult(None, built.error)
        name = str(len(self.found) + len(self._built))
        self._built[name] = candidate, built
        return BuilderResult(name, None)

    def run(self, name: str) -> RunnerFuture:
        candidate, built = self._built.pop(name)
        measurement = self._measurer.run(built)
        self.found.append((candidate, seconds(measurement)))
        result = (
            RunnerResult(list(measurement.run_s), None)
            if measurement.outcome is Outcome.OK
            else RunnerResult(None, measurement.error)
        )
        return RunnerFuture(lambda: True, lambda: result)


def _builder(measuring: _Measuring) -> PyBuilder:
    @derived_object
    class Builder(PyBuilder):
        def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
            return measuring.build([one.mod for one in build_inputs])

    return Builder()


def _runner(measuring: _Measuring) -> PyRunner:
    @derived_object
    class Runner(PyRunner):
        def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
            return [measuring.run(str(one.artifact_path)) for one in runner_inputs]

    return Runner()
