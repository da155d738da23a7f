"""Search one operator with both engines, and time their best programs in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.engines import metaschedule_search
from benchmarks.engines.tunefarm_search import Searched, TunefarmSearch
from benchmarks.operators import libraries
from benchmarks.operators.libraries import Compared
from benchmarks.results.searches import Search
from benchmarks.suite import OPERATORS, Shape
from benchmarks.timing.finals import (
    ANY_BLOCK,
    REST_S,
    SearchResult,
    Trials,
    best,
    median_seconds,
    milestones_up_to,
    time_best_programs,
    verified,
)
from benchmarks.timing.interleaved import Block, Contestant, Counted, Pair, measure
from benchmarks.timing.measurer import Finalist, ProgramMeasurer, Trial
from compiler.target import detect_device
from search.policy import Sample

# The searches of each operator.
OURS, THEIRS, WARM = "ours", "MetaSchedule", "ours, other shapes known"
# The numbers of trials after which the best program of each search is timed in turns.
AFTER = (8, 16, 64)
SCORED_AT_ONCE = 10_000
SCORE_BLOCK = Block(warm_up_s=0.1, min_s=0.2, min_calls=1)


@dataclass(frozen=True)
class Plan:
    """The settings of a run. Each engine has `trials` for an operator.

    Its other shapes get half of them if every shape is compared with libraries, otherwise a quarter.
    """

    trials: int
    threads: int
    rounds: int = 10
    seed: int = 0

    def shape_trials(self, operator: str) -> int:
        return max(self.trials // (2 if operator in libraries.EVERY_SHAPE else 4), 1)

    @property
    def milestones(self) -> tuple[int, ...]:
        """The numbers of trials after which the best program is timed in turns, including the last."""
        return milestones_up_to(self.trials, AFTER)


@dataclass(frozen=True)
class OperatorResult:
    """The searches of one operator. `warm` is our search again, trained on the operator's other shapes first.

    `set_up_s` is MetaSchedule's time before its first build. `precision` has programs that both engines'
    runners timed repeatedly, `scored` the seconds of a prediction.
    """

    operator: str
    ours: SearchResult
    theirs: SearchResult
    warm: SearchResult
    set_up_s: float
    precision: tuple[Pair, ...]
    scored: Pair | None
    libraries: tuple[Compared, ...]
    errors: tuple[str, ...]

    @property
    def searches(self) -> tuple[Search, ...]:
        return self.ours.curve, self.theirs.curve, self.warm.curve


def run(operator: str, plan: Plan) -> OperatorResult:
    """Needs its own process, with TVM_NUM_THREADS in the environment.

    Raises UnsupportedSubgraph if our search can't represent the operator.
    """
    return _Run(operator, plan).result()


class _Run:
    def __init__(self, operator: str, plan: Plan) -> None:
        self._operator = operator
        self._plan = plan
        self._start_s = time.perf_counter()
        self._chosen = OPERATORS[operator]
        self._device = detect_device(plan.threads)
        self._module = self._chosen.module(self._chosen.benchmark)
        self._measurer = ProgramMeasurer(self._module, self._device)
        self._errors: list[str] = []

    def result(self) -> OperatorResult:
        trials = self._plan.trials
        search = TunefarmSearch(self._module, self._device)
        ours = search.tune(trials, self._measurer.timed, self._rng())
        self._say(_progress(ours.trials))
        theirs = self._theirs()
        self._say(f"{len(theirs.trials)} trials of MetaSchedule in {theirs.seconds:.0f} s")
        compared = self._compared(self._chosen.benchmark, self._measurer, ours.trials)
        before, others = self._other_shapes()
        warm = TunefarmSearch(self._module, self._device).tune(
            trials, self._measurer.timed, self._rng(), before
        )
        self._say(f"{_progress(warm.trials)}, other shapes known")
        tried = {OURS: ours.trials, THEIRS: theirs.trials, WARM: warm.trials}
        milestones = {name: Trials(each, self._plan.milestones) for name, each in tried.items()}
        results = time_best_programs(
            self._measurer, self._operator, milestones, self._plan.rounds, self._errors
        )
        self._say("the best of all timed in turns")
        precision = self._precision(ours.trials, theirs.trials)
        self._say("the best measured by both engines")
        return OperatorResult(
            self._operator,
            results[OURS],
            results[THEIRS],
            results[WARM],
            theirs.set_up_s,
            precision,
            self._scored(search, ours, theirs),
            tuple(each for each in (compared, *others) if each is not None),
            tuple(dict.fromkeys(self._errors)),
        )

    def _theirs(self) -> metaschedule_search.SearchRun:
        with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
            tuned = metaschedule_search.tune(
                self._module, self._device, self._plan.trials, self._plan.seed, Path(folder)
            )
        if tuned.error:
            self._errors.append(f"MetaSchedule ended early: {tuned.error}")
        return tuned

    def _other_shapes(self) -> tuple[list[Sample], list[Compared | None]]:
        """Search the operator's other shapes. Return all measurements, and the comparisons of their best
        programs with libraries."""
        samples: list[Sample] = []
        compared = []
        for shape in self._chosen.shapes:
            if shape == self._chosen.benchmark:
                continue
            module = self._chosen.module(shape)
            measurer = ProgramMeasurer(module, self._device)
            trials = self._plan.shape_trials(self._operator)
            searched = TunefarmSearch(module, self._device).tune(trials, measurer.timed, self._rng())
            self._say(f"{_progress(searched.trials)} of {_words(shape)}")
            samples += searched.samples
            if self._operator in libraries.EVERY_SHAPE:
                compared.append(self._compared(shape, measurer, searched.trials))
        return samples, compared

    def _compared(self, shape: Shape, measurer: ProgramMeasurer, trials: Sequence[Trial]) -> Compared | None:
        if self._operator not in libraries.PEERS:
            return None
        finalists = verified(measurer, best(trials), self._errors)
        if not finalists:
            return None
        (ours,) = finalists.values()
        found = libraries.compare(self._operator, shape, ours, self._plan.threads, self._plan.rounds)
        self._say(f"libraries at {_words(shape)}")
        return found

    def _precision(self, ours: Sequence[Trial], theirs: Sequence[Trial]) -> tuple[Pair, ...]:
        """Time the best program of each engine with both engines' runners in turns. Our runner gets the best
        latency."""
        found = verified(self._measurer, [*best(ours), *best(theirs)], self._errors)
        secs = median_seconds([*ours, *theirs])
        finalists = [replace(finalist, best_s=secs[candidate]) for candidate, finalist in found.items()]
        with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
            timer = metaschedule_search.Timer(self._module, Path(folder))
            try:
                return tuple(self._time_with_both(finalist, timer) for finalist in finalists)
            except RuntimeError as error:  # other figures don't depend on it
                self._errors.append(f"MetaSchedule's runner: {error}")
                return ()

    def _time_with_both(self, finalist: Finalist, timer: metaschedule_search.Timer) -> Pair:
        contestants: dict[str, Contestant] = {"ours": finalist, "theirs": timer.timing(finalist.built)}
        return Pair(**measure(contestants, self._plan.rounds, ANY_BLOCK, rest_s=REST_S))

    def _scored(
        self, search: TunefarmSearch, ours: Searched, theirs: metaschedule_search.SearchRun
    ) -> Pair | None:
        if not (ours.trials and theirs.measured):
            return None
        population = search.population(SCORED_AT_ONCE, self._rng())
        scorer = metaschedule_search.Scorer(self._module, self._device, theirs.measured)
        contestants = {
            "ours": Counted(lambda: search.score(population, ours.model)),
            "theirs": Counted(scorer.score),
        }
        return Pair(**measure(contestants, self._plan.rounds, SCORE_BLOCK))

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self._plan.seed)

    def _say(self, what: str) -> None:
        """Print `what` with the seconds since the operator began."""
        print(f"  {self._operator}, {time.perf_counter() - self._start_s:.0f} s: {what}", flush=True)


def _progress(trials: Sequence[Trial]) -> str:
    return f"{len(trials)} trials in {trials[-1].at_s if trials else 0.0:.0f} s"


def _words(shape: Shape) -> str:
    return " x ".join(map(str, shape))
