"""Our search of one workload: the parts of `search` and `compiler` that benchmarks need."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm

from benchmarks.timing.measurer import Candidate, Trial
from compiler.lowering.trace import LoweringError, lower
from compiler.reading.subgraph import read_dag
from compiler.workload import to_json
from core.device import Device
from search.cost.model import CostModel
from search.dag import Dag
from search.evolution.transfer import transfer_programs
from search.policy import Sample, SearchConfig, TuneContext, draw, propose, train
from search.programs.annotate import sample
from search.programs.program import Population, Program
from search.remeasurement import MeasuredProgram, remeasurement_count, select_for_remeasurement
from search.rules.space import generate
from search.sketches.sketch import Sketch

# Rounds begin small and grow, because few measurements correct most of the estimate's errors.
SMALLEST_ROUND, LARGEST_ROUND = 8, 32
# The number of programs of each similar workload that are fitted to the searched one.
SEEDS = 4

# Times programs, given the best seconds so far. Yields the seconds of each program in order, inf for a
# failure.
Measure = Callable[[Sequence[Candidate | None], float], Iterable[float]]


class EmptySpace(Exception):
    """The search found no valid program of a workload. The message names it."""


@dataclass(frozen=True)
class Variant:
    """A variant of the search.

    `task` makes the tuning context from a workload's sketches, and `config` has the rules for picking a
    batch. With `learns`, the learned model is trained. With `measures_again`, the fastest programs are
    measured again.
    """

    task: Callable[[Dag, tuple[Sketch, ...], Device], TuneContext] = TuneContext
    config: SearchConfig | None = None
    learns: bool = True
    measures_again: bool = True


@dataclass
class MeasuredCandidate:
    """A lowered program, None if TVM refused it, and the seconds of each measurement."""

    candidate: Candidate | None
    run_s: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median of the measurements; inf for a program that failed or wasn't measured yet."""
        return statistics.median(self.run_s) if self.run_s else math.inf


@dataclass(frozen=True)
class Searched:
    """A finished search: its trials, the samples of all programs, and the model trained on them."""

    trials: tuple[Trial, ...]
    samples: tuple[Sample, ...]
    model: CostModel


class TunefarmSearch:
    """The sketches of one workload on one device."""

    def __init__(self, module: tvm.IRModule, device: Device, variant: Variant | None = None) -> None:
        """Raises UnsupportedSubgraph if the search can't represent the workload."""
        start_s = time.perf_counter()
        dag = read_dag(module)
        self._module = module
        self._text = to_json(module)
        self._variant = variant or Variant()
        self._task = self._variant.task(dag, generate(dag, device), device)
        self._set_up_s = time.perf_counter() - start_s

    def random(self, count: int, rng: np.random.Generator) -> list[Program]:
        """Draw random programs as the search does without measurements. Raises EmptySpace."""
        programs = [proposal.program for proposal in draw(self._task, count, rng)]
        if not programs:
            raise EmptySpace(self._task.dag.name)
        return programs

    def uniform(self, count: int, rng: np.random.Generator) -> list[Program]:
        """Draw programs uniformly, each from a random sketch."""
        drawn = [sample(sketch, 8 * count, rng) for sketch in self._task.sketches]
        some = [population for population in drawn if len(population)]
        chosen = [some[rng.integers(len(some))] for _ in range(count)] if some else []
        return [population.program(int(rng.integers(len(population)))) for population in chosen]

    def sample_all(self, count: int, rng: np.random.Generator) -> int:
        """Draw `count` programs of every sketch. Return the number of valid ones."""
        return sum(len(sample(sketch, count, rng)) for sketch in self._task.sketches)

    def population(self, count: int, rng: np.random.Generator) -> Population:
        """Draw `count` programs of every sketch. Return the valid programs of the sketch with the most."""
        drawn = [sample(sketch, count, rng) for sketch in self._task.sketches]
        return max(drawn, key=len)

    def score(self, population: Population, model: CostModel) -> int:
        """Predict all programs. Return their number."""
        return len(self._task.predict(population, model))

    def lower(self, program: Program) -> Candidate:
        """Return the program as a TVM schedule. Raises LoweringError if TVM refuses it."""
        return Candidate(self._text, lower(self._module, program, self._task.device))

    def candidate(self, program: Program) -> Candidate | None:
        """Return the lowered program; None if TVM refuses it."""
        try:
            return self.lower(program)
        except LoweringError:
            return None

    def tune(
        self, trials: int, measure: Measure, rng: np.random.Generator, before: Sequence[Sample] = ()
    ) -> Searched:
        """Search as a job does, round by round. Nothing else runs while candidates are timed.

        The model is trained on `before`, measurements of other workloads, from the start, and evolution
        begins with the best of them, fitted to this workload. The trials' seconds include reading the
        workload and deriving its sketches.
        """
        start_s = time.perf_counter() - self._set_up_s
        found: list[Trial] = []
        tried: dict[Program, MeasuredCandidate] = {}
        model = self._trained(before)
        initial = transfer_programs(_best_of_each(before), self._task.sketches)
        while len(found) < trials:
            count = min(round_size(len(found)), trials - len(found))
            again = self._again(tried, count, rng, is_last=len(found) + count == trials)
            new = self._new(model, tried, count - len(again), rng, initial)
            if not new + again:
                break
            tried |= {program: MeasuredCandidate(self.candidate(program)) for program in new}
            batch = [tried[program] for program in again + new]
            best_s = min((one.seconds for one in tried.values()), default=math.inf)
            timed = measure([one.candidate for one in batch], best_s)
            for one, secs in zip(batch, timed, strict=True):
                one.run_s.append(secs)
                found.append(Trial(one.candidate, secs, time.perf_counter() - start_s))
            model = self._trained([*before, *self._samples(tried)])
        return Searched(tuple(found), self._samples(tried), model)

    def _again(
        self,
        tried: Mapping[Program, MeasuredCandidate],
        count: int,
        rng: np.random.Generator,
        *,
        is_last: bool,
    ) -> list[Program]:
        if not self._variant.measures_again:
            return []
        timed = [MeasuredProgram(program, one.seconds, len(one.run_s)) for program, one in tried.items()]
        return select_for_remeasurement(timed, remeasurement_count(count, rng, is_last=is_last))

    def _new(
        self,
        model: CostModel,
        tried: Mapping[Program, MeasuredCandidate],
        count: int,
        rng: np.random.Generator,
        initial: Sequence[Program],
    ) -> list[Program]:
        known = [(program, one.seconds) for program, one in tried.items()]
        proposals = propose(
            self._task,
            model,
            known,
            count,
            rng,
            config=self._variant.config,
            initial_programs=initial,
        )
        return [one.program for one in proposals]

    def _samples(self, tried: Mapping[Program, MeasuredCandidate]) -> tuple[Sample, ...]:
        return tuple((self._task, program, one.seconds) for program, one in tried.items())

    def _trained(self, samples: Sequence[Sample]) -> CostModel:
        return train(samples) if self._variant.learns else CostModel()


def _best_of_each(samples: Sequence[Sample]) -> list[Program]:
    """Return the SEEDS fastest programs of every task."""
    of_task: dict[int, list[tuple[float, Program]]] = {}
    for task, program, secs in samples:
        if math.isfinite(secs):
            of_task.setdefault(id(task), []).append((secs, program))
    ranked = (sorted(found, key=lambda pair: pair[0])[:SEEDS] for found in of_task.values())
    return [program for found in ranked for _, program in found]


def round_size(done: int) -> int:
    """Return the size of the round after `done` trials."""
    return min(max(done, SMALLEST_ROUND), LARGEST_ROUND)
