"""Both engines' spaces of one operator: random programs, the best after a search, the rate of sampling."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.engines.metaschedule_space import MetaScheduleSpace
from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.results.random_programs import RandomPrograms
from benchmarks.suite import OPERATORS
from benchmarks.timing.interleaved import Block, Counted, Pair, Timings, measure
from benchmarks.timing.measurer import Finalist, ProgramMeasurer, TimedCandidates, fastest, seconds
from compiler.measuring.builder import BuiltKernel
from compiler.target import detect_device

# Where valid programs a second are measured too.
RATED = ("GMM", "C2D")
SAMPLED_OF_A_SKETCH = 2048
RATE_BLOCK = Block(warm_up_s=0.1, min_s=0.5, min_calls=1)
FINAL_BLOCK = Block()  # finalists repeat as often as the bench finds right


@dataclass(frozen=True)
class Plan:
    """`programs` are drawn at random of each engine, `trials` searched for, the fastest `finalists` of each
    timed again in `rounds` turns; everything runs on `threads` cores."""

    programs: int
    trials: int
    threads: int
    finalists: int = 3
    rounds: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Rates:
    """Seconds a valid program in every turn on one core: ours in arrays, ours as traces, MetaSchedule's."""

    ours: Timings
    lowered: Timings
    theirs: Timings


@dataclass(frozen=True)
class OperatorResult:
    """One operator. Seconds of random programs are infinite for those that failed to build or to agree.

    `errors` says why ours failed, each reason once. Of each engine the best is timed again in turns; None
    when an engine has nobody to send.
    """

    operator: str
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]
    errors: tuple[str, ...]
    random: Pair | None
    ceiling: Pair | None
    rates: Rates | None

    def drawn(self) -> RandomPrograms:
        """What is drawn of it."""
        ours, theirs = (tuple(sorted(filter(math.isfinite, side))) for side in (self.ours_s, self.theirs_s))
        return RandomPrograms(self.operator, ours, theirs)


def run(operator: str, plan: Plan) -> OperatorResult:
    """Wants a process of its own, with TVM_NUM_THREADS in the environment.

    Raises UnsupportedSubgraph or EmptySpace when our search has no programs for the operator.
    """
    return _Run(operator, plan).found()


class _Run:
    def __init__(self, operator: str, plan: Plan) -> None:
        self._plan = plan
        self._operator = operator
        self._rng = np.random.default_rng(plan.seed)
        device = detect_device(plan.threads)
        chosen = OPERATORS[operator]
        module = chosen.module(chosen.benchmark)
        self._ours = TunefarmSearch(module, device)
        self._theirs = MetaScheduleSpace(module, device, plan.seed)
        self._measurer = ProgramMeasurer(module, device)

    def found(self) -> OperatorResult:
        ours, theirs, errors = self._random()
        ours_tuned, theirs_tuned = self._tuned()
        return OperatorResult(
            self._operator,
            tuple(secs for _, secs in ours),
            tuple(secs for _, secs in theirs),
            errors,
            self._final(ours, theirs),
            self._final([*ours, *ours_tuned], [*theirs, *theirs_tuned]),
            self._rates() if self._operator in RATED else None,
        )

    def _random(self) -> tuple[TimedCandidates, TimedCandidates, tuple[str, ...]]:
        """Both engines' random programs, timed alternately."""
        programs = self._ours.random(self._plan.programs, self._rng)
        ours = [self._ours.candidate(program) for program in programs]
        theirs = self._theirs.random(self._plan.programs)
        mixed = [candidate for pair in zip(ours, theirs, strict=True) for candidate in pair]
        measured = self._measurer.measure(mixed)
        errors = dict.fromkeys(f"{one.outcome}: {one.error}" for one in measured[::2] if one.error)
        secs = [seconds(one) for one in measured]
        return (
            list(zip(ours, secs[::2], strict=True)),
            list(zip(theirs, secs[1::2], strict=True)),
            tuple(errors),
        )

    def _tuned(self) -> tuple[TimedCandidates, TimedCandidates]:
        searched = self._ours.tune(self._plan.trials, self._measurer.timed, self._rng)
        ours = [(trial.candidate, trial.secs) for trial in searched.trials]
        with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
            return ours, self._theirs.tune(self._plan.trials, self._measurer, Path(folder))

    def _final(self, ours: TimedCandidates, theirs: TimedCandidates) -> Pair | None:
        finalists = {
            f"{side} {number}": Finalist(self._measurer, built)
            for side, timed in (("ours", ours), ("theirs", theirs))
            for number, built in enumerate(self._measurer.build(fastest(timed, self._plan.finalists)))
            if isinstance(built, BuiltKernel)
        }
        timings = measure(finalists, self._plan.rounds, FINAL_BLOCK, rest_s=0.02) if finalists else {}
        best = [_best(timings, side) for side in ("ours", "theirs")]
        return Pair(best[0], best[1]) if best[0] and best[1] else None

    def _rates(self) -> Rates:
        def arrays() -> int:
            return self._ours.sample_all(SAMPLED_OF_A_SKETCH, self._rng)

        def traces() -> int:
            programs = self._ours.random(16, self._rng)
            return sum(self._ours.candidate(program) is not None for program in programs)

        contestants = {
            "ours": Counted(arrays),
            "lowered": Counted(traces),
            "theirs": Counted(lambda: len(self._theirs.sample())),
        }
        return Rates(**measure(contestants, self._plan.rounds, RATE_BLOCK))


def _best(timings: dict[str, Timings], side: str) -> Timings | None:
    own = [each for name, each in timings.items() if name.startswith(side)]
    return min(own, key=lambda each: each.latency_s.value, default=None)
