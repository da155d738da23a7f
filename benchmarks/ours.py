"""Our space of one workload: what benchmarks ask of `search` and `compiler`, and nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm

from benchmarks.judge import Candidate
from compiler.lower import LoweringError, lower
from compiler.subgraph import read_dag
from compiler.workload import to_json
from search.annotate import sample
from search.cost_model import CostModel
from search.device import Device
from search.policy import SearchTask, draw, propose, train
from search.program import Program
from search.space import generate

TRIALS_A_ROUND = 32

# Seconds of every program; inf where it failed.
Measure = Callable[[Sequence[Candidate | None]], Sequence[float]]


class EmptySpace(Exception):
    """A workload has no valid programs; the message names it."""


class OurSpace:
    """The sketches of one workload on one device."""

    def __init__(self, module: tvm.IRModule, device: Device) -> None:
        """Raises NotCovered when the search has no form for the workload."""
        dag = read_dag(module)
        self._module = module
        self._text = to_json(module)
        self._task = SearchTask(dag, generate(dag, device), device)

    def random(self, count: int, rng: np.random.Generator) -> list[Program]:
        """As the search draws them when it knows nothing but the estimate. Raises EmptySpace."""
        programs = draw(self._task, count, rng)
        if not programs:
            raise EmptySpace(self._task.dag.name)
        return programs

    def sample_all(self, count: int, rng: np.random.Generator) -> int:
        """Draws `count` programs of every sketch; how many valid ones there were."""
        return sum(len(sample(sketch, count, rng)) for sketch in self._task.sketches)

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
        self, trials: int, measure: Measure, rng: np.random.Generator
    ) -> list[tuple[Candidate | None, float]]:
        """Searches as a job does, a round at a time; everything measured, in its order."""
        known: list[tuple[Program, float]] = []
        found: list[tuple[Candidate | None, float]] = []
        model = CostModel()
        while len(known) < trials:
            count = min(TRIALS_A_ROUND, trials - len(known))
            programs = [one.program for one in propose(self._task, model, known, count, rng)]
            if not programs:
                break
            candidates = [self.candidate(program) for program in programs]
            secs = measure(candidates)
            known += zip(programs, secs, strict=True)
            found += zip(candidates, secs, strict=True)
            model = train([(self._task, program, one_s) for program, one_s in known])
        return found
