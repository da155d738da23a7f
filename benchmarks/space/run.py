"""Measure both engines' spaces of one operator: random programs, the best after a search, sampling rates."""

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

# Operators whose sampling rates are measured.
RATED = ("GMM", "C2D")
SAMPLED_OF_A_SKETCH = 2048
RATE_BLOCK = Block(warm_up_s=0.1, min_s=0.5, min_calls=1)
FINAL_BLOCK = Block()  # the runner decides how often a finalist is repeated


@dataclass(frozen=True)
class Plan:
    """Each engine draws `programs` at random and searches with `trials`; its fastest `finalists` are timed
    again in `rounds` turns. Everything runs on `threads` cores."""

    programs: int
    trials: int
    threads: int
    finalists: int = 3
    rounds: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Rates:
    """Seconds of one valid program in every turn on one core: ours as arrays, ours lowered,
    MetaSchedule's."""

    ours: Timings
    lowered: Timings
    theirs: Timings


@dataclass(frozen=True)
class OperatorResult:
    """The measurements of one operator.

    `ours_s` and `theirs_s` are seconds of random programs, inf for a failure; `errors` has each reason for
    a failure of ours once. `random` and `ceiling` have the best programs of both engines in turns, without
    and with a search; None when an engine has none.
    """

    operator: str
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]
    errors: tuple[str, ...]
    random: Pair | None
    ceiling: Pair | None
    rates: Rates | None

    def random_programs(self) -> RandomPrograms:
        """Return the seconds of random programs that ran, fastest first."""
        ours, theirs = (tuple(sorted(filter(math.isfinite, side))) for side in (self.ours_s, self.theirs_s))
        return RandomPrograms(self.operator, ours, theirs)


def run(operator: str, plan: Plan) -> OperatorResult:
    """Needs its own process, with TVM_NUM_THREADS in the environment.

    Raises UnsupportedSubgraph when our search can't represent the operator, EmptySpace when it finds no
    program.
    """
    return _Run(operator, plan).result()


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

    def result(self) -> OperatorResult:
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
        """Time both engines' random programs alternately."""
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
        ours = [(trial.candidate, trial.run_s) for trial in searched.trials]
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
