"""Our space of one workload: what benchmarks ask of `search` and `compiler`, and nothing else of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm

from benchmarks.timing.judge import Candidate, Trial
from compiler.lower import LoweringError, lower
from compiler.subgraph import read_dag
from compiler.workload import to_json
from search.annotate import sample
from search.cost.model import CostModel
from search.dag import Dag
from search.device import Device
from search.policy import Sample, SearchConfig, SearchTask, draw, propose, train
from search.program import Population, Program
from search.sketch import Sketch
from search.space import generate
from search.transfer import transferred

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
    """A way to search: which task is made of a workload's sketches, how batches are picked, and whether the
    learned model is trained or the estimate stays as it is."""

    task: Callable[[Dag, tuple[Sketch, ...], Device], SearchTask] = SearchTask
    config: SearchConfig | None = None
    learns: bool = True


@dataclass(frozen=True)
class Searched:
    """A finished search: its trials, what each of them taught, and the model trained on that in the end."""

    trials: tuple[Trial, ...]
    samples: tuple[Sample, ...]
    model: CostModel


class OurSpace:
    """The sketches of one workload on one device."""

    def __init__(self, module: tvm.IRModule, device: Device, variant: Variant | None = None) -> None:
        """Raises NotCovered when the search has no form for the workload."""
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
        samples: list[Sample] = []
        model, seeds = self._trained(before), transferred(_best_of_each(before), self._task.sketches)
        while len(found) < trials:
            count = min(round_size(len(found)), trials - len(found))
            programs = self._next(model, samples, count, rng, seeds)
            if not programs:
                break
            candidates = [self.candidate(program) for program in programs]
            timed = measure(candidates, min((trial.secs for trial in found), default=math.inf))
            for program, candidate, secs in zip(programs, candidates, timed, strict=True):
                found.append(Trial(candidate, secs, time.perf_counter() - start_s))
                samples.append((self._task, program, secs))
            model = self._trained([*before, *samples])
        return Searched(tuple(found), tuple(samples), model)

    def _next(
        self,
        model: CostModel,
        samples: Sequence[Sample],
        count: int,
        rng: np.random.Generator,
        seeds: Sequence[Program],
    ) -> list[Program]:
        known = [(program, secs) for _, program, secs in samples]
        proposals = propose(self._task, model, known, count, rng, config=self._variant.config, seeds=seeds)
        return [one.program for one in proposals]

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
