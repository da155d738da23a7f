"""Our space of one workload: what benchmarks ask of `search` and `compiler`, and nothing else of them."""

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
from search.policy import Sample, SearchConfig, SearchTask, draw, propose, train
from search.programs.annotate import sample
from search.programs.program import Population, Program
from search.remeasurement import MeasuredProgram, remeasurement_count, select_for_remeasurement
from search.rules.space import generate
from search.sketches.sketch import Sketch

# The estimate is good at once and few measurements correct most of it: rounds begin small, and grow.
SMALLEST_ROUND, LARGEST_ROUND = 8, 32
# So many programs of every similar workload are fitted to the one that is searched.
SEEDS = 4

# Seconds of every program in their order, each as soon as it is known; inf where it failed. The best seconds
# so far say how precisely.
Measure = Callable[[Sequence[Candidate | None], float], Iterable[float]]


class EmptySpace(Exception):
    """A workload has no valid programs; the message names it."""


@dataclass(frozen=True)
class Variant:
    """A way to search: which task is made of a workload's sketches, how batches are picked, whether the
    learned model is trained or the estimate stays as it is, and whether the fastest are measured again."""

    task: Callable[[Dag, tuple[Sketch, ...], Device], SearchTask] = SearchTask
    config: SearchConfig | None = None
    learns: bool = True
    measures_again: bool = True


@dataclass
class MeasuredCandidate:
    """A program lowered (None when TVM refused it), and the seconds of each time it was measured."""

    candidate: Candidate | None
    secs: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Their median, infinite for a program that failed or was not measured yet."""
        return statistics.median(self.secs) if self.secs else math.inf


@dataclass(frozen=True)
class Searched:
    """A finished search: its trials, what each program taught, and the model trained on that in the end."""

    trials: tuple[Trial, ...]
    samples: tuple[Sample, ...]
    model: CostModel


class TunefarmSearch:
    """The sketches of one workload on one device."""

    def __init__(self, module: tvm.IRModule, device: Device, variant: Variant | None = None) -> None:
        """Raises UnsupportedSubgraph when the search has no form for the workload."""
        start_s = time.perf_counter()
        dag = read_dag(module)
        self._module = module
        self._text = to_json(module)
        self._variant = variant or Variant()
        self._task = self._variant.task(dag, generate(dag, device), device)
        self._set_up_s = time.perf_counter() - start_s

    def random(self, count: int, rng: np.random.Generator) -> list[Program]:
        """As the search draws them when it knows nothing but the estimate. Raises EmptySpace."""
        programs = draw(self._task, count, rng)
        if not programs:
            raise EmptySpace(self._task.dag.name)
        return programs

    def uniform(self, count: int, rng: np.random.Generator) -> list[Program]:
        """Drawn without any estimate, each from a random sketch."""
        drawn = [sample(sketch, 8 * count, rng) for sketch in self._task.sketches]
        some = [population for population in drawn if len(population)]
        chosen = [some[rng.integers(len(some))] for _ in range(count)] if some else []
        return [population.program(int(rng.integers(len(population)))) for population in chosen]

    def sample_all(self, count: int, rng: np.random.Generator) -> int:
        """Draws `count` programs of every sketch; how many valid ones there were."""
        return sum(len(sample(sketch, count, rng)) for sketch in self._task.sketches)

    def population(self, count: int, rng: np.random.Generator) -> Population:
        """Up to `count` different programs of the sketch that has the most of them."""
        drawn = [sample(sketch, count, rng) for sketch in self._task.sketches]
        return max(drawn, key=len)

    def score(self, population: Population, model: CostModel) -> int:
        """Predicts all of them; how many there were."""
        return len(self._task.predict(population, model))

    def lower(self, program: Program) -> Candidate:
        """Raises LoweringError when TVM refuses the program."""
        return Candidate(self._text, lower(self._module, program, self._task.device))

    def candidate(self, program: Program) -> Candidate | None:
        """The program lowered; None when TVM refuses it."""
        try:
            return self.lower(program)
        except LoweringError:
            return None

    def tune(
        self, trials: int, measure: Measure, rng: np.random.Generator, before: Sequence[Sample] = ()
    ) -> Searched:
        """Searches as a job does, a round at a time: nothing else runs while candidates are timed.

        `before` are measurements of other workloads: the model knows them from the start, and evolution
        begins with the best of them, fitted to this workload. Reading the workload and deriving its sketches
        counts into the trials' seconds.
        """
        start_s = time.perf_counter() - self._set_up_s
        found: list[Trial] = []
        tried: dict[Program, MeasuredCandidate] = {}
        model, seeds = self._trained(before), transfer_programs(_best_of_each(before), self._task.sketches)
        while len(found) < trials:
            count = min(round_size(len(found)), trials - len(found))
            again = self._again(tried, count, rng, is_last=len(found) + count == trials)
            new = self._new(model, tried, count - len(again), rng, seeds)
            if not new + again:
                break
            tried |= {program: MeasuredCandidate(self.candidate(program)) for program in new}
            batch = [tried[program] for program in again + new]
            best_s = min((one.seconds for one in tried.values()), default=math.inf)
            timed = measure([one.candidate for one in batch], best_s)
            for one, secs in zip(batch, timed, strict=True):
                one.secs.append(secs)
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
        timed = [MeasuredProgram(program, one.seconds, len(one.secs)) for program, one in tried.items()]
        return select_for_remeasurement(timed, remeasurement_count(count, rng, is_last=is_last))

    def _new(
        self,
        model: CostModel,
        tried: Mapping[Program, MeasuredCandidate],
        count: int,
        rng: np.random.Generator,
        seeds: Sequence[Program],
    ) -> list[Program]:
        known = [(program, one.seconds) for program, one in tried.items()]
        proposals = propose(self._task, model, known, count, rng, config=self._variant.config, seeds=seeds)
        return [one.program for one in proposals]

    def _samples(self, tried: Mapping[Program, MeasuredCandidate]) -> tuple[Sample, ...]:
        return tuple((self._task, program, one.seconds) for program, one in tried.items())

    def _trained(self, samples: Sequence[Sample]) -> CostModel:
        return train(samples) if self._variant.learns else CostModel()


def _best_of_each(samples: Sequence[Sample]) -> list[Program]:
    """The fastest few programs of every task."""
    of_task: dict[int, list[tuple[float, Program]]] = {}
    for task, program, secs in samples:
        if math.isfinite(secs):
            of_task.setdefault(id(task), []).append((secs, program))
    ranked = (sorted(found, key=lambda pair: pair[0])[:SEEDS] for found in of_task.values())
    return [program for found in ranked for _, program in found]


def round_size(done: int) -> int:
    """How many trials come next after so many."""
    return min(max(done, SMALLEST_ROUND), LARGEST_ROUND)
