"""Random programs of every operator of the suite compile and agree with a float64 reference, and pass the
verification of trials.

A sketch is drawn uniformly, then one row of a sample of its programs. An operator's programs are spread over
its small shapes and element types.

A push tries eight programs of a few operators, seeded by the commit; the slow lane tries 16 of the others.
`python -m tests.integration.compiler.test_random_programs 640` tries that many of every operator, and counts;
TUNEFARM_PROGRAMS=200 sets the slow lane's number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import pytest
import tvm

from benchmarks.suite import OPERATORS
from compiler.lowering.trace import LoweringError, lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.workload import to_json
from search.programs.annotate import sample
from search.programs.program import Program
from search.rules.space import generate
from tests.imported_cases import GeluProduct, ImportedSoftmax
from tests.marks import slow_lane_except
from tests.suite import Case, cases

FEW, MANY = 8, int(os.environ.get("TUNEFARM_PROGRAMS", "16"))
EVERY_PUSH = ("GMM", "C2D", "DEP", "T2D", "softmax")
DRAWN = 64  # of which one is taken
SHOWN = 3  # failures that a message tells of
DEVICE = detect_device()
BUILDER = LocalBuilder(DEVICE.target)
RUNNER = LocalRunner(DEVICE.target)


@dataclass(frozen=True)
class Tried:
    """One program and its error in building or in the result, if any."""

    case: Case
    program: Program
    build_error: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.case}\n{self.program}\n{self.build_error or self.wrong}\n"


class _Workload:
    """The search space, inputs and expected result of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.workload = case.module()
        self.text = to_json(self.workload)
        self.sketches = generate(read_dag(self.workload), DEVICE)
        self.arguments = case.arguments()
        self.expected = case.reference(self.arguments[:-1])

    def draw(self, rng: np.random.Generator) -> Program:
        population = sample(self.sketches[rng.integers(len(self.sketches))], DRAWN, rng)
        return population.program(int(rng.integers(len(population))))

    def build(self, program: Program) -> BuiltKernel | str:
        """Compile a program; return it or the error."""
        try:
            trace = lower(self.workload, program, DEVICE)
        except LoweringError as error:
            return f"lowering: {error}"
        built = BUILDER.build(self.text, trace)
        return built if isinstance(built, BuiltKernel) else f"building: {built.error}"

    def difference(self, built: BuiltKernel) -> str:
        placed = [tvm.runtime.tensor(array, device=tvm.cpu()) for array in self.arguments]
        try:
            built.function(*built.arguments(placed))
        except Exception as error:  # TVM's C++ code may raise any exception class
            return f"running: {error}"
        if wrong := self.case.difference(placed[-1].numpy(), self.expected):
            return wrong
        measured = RUNNER.run(built, self.text, (), best_s=1e-12)
        return f"refused: {measured.error}" if measured.error else ""


def _try(of: Sequence[Case], count: int, seed: int) -> tuple[Tried, ...]:
    """Compile two programs at a time: LLVM releases Python's lock."""
    rng = np.random.default_rng(seed)
    workloads = islice(cycle([_Workload(case) for case in of]), count)
    drawn = [(workload, workload.draw(rng)) for workload in workloads]
    with ThreadPoolExecutor(2) as builders:
        built = builders.map(lambda pair: pair[0].build(pair[1]), drawn)
        return tuple(
            _judged(workload, program, one) for (workload, program), one in zip(drawn, built, strict=True)
        )


def _judged(workload: _Workload, program: Program, built: BuiltKernel | str) -> Tried:
    if isinstance(built, str):
        return Tried(workload.case, program, built, "")
    return Tried(workload.case, program, "", workload.difference(built))


def _told(failed: Sequence[Tried]) -> str:
    return f"{len(failed)} programs failed:\n" + "\n".join(str(one) for one in failed[:SHOWN])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operator", slow_lane_except(OPERATORS, *EVERY_PUSH, seconds=4))
def test_random_programs_compute_the_right_result(operator: str, commit_seed: int) -> None:
    """All results are right, and at most one program, or one in 200, doesn't compile."""
    tried = _try(cases(operator), FEW if operator in EVERY_PUSH else MANY, commit_seed)
    wrong = [one for one in tried if one.wrong]
    assert not wrong, _told(wrong)
    failed = [one for one in tried if one.build_error]
    assert len(failed) <= max(1, 0.005 * len(tried)), _told(failed)


@pytest.mark.slow
def test_programs_of_imported_subgraphs_compute_the_right_result(commit_seed: int) -> None:
    of = [ImportedSoftmax("softmax", (7, 1000)), GeluProduct("GMM", (13, 49, 32))]
    failed = [one for one in _try(of, FEW, commit_seed) if one.wrong or one.build_error]
    assert not failed, _told(failed)


def test_a_wrong_result_is_noticed() -> None:
    workload = _Workload(Case("GMM", (16, 32, 64)))
    other = _Workload(Case("GMM", (16, 32, 64)))
    other.expected = other.expected + 1.0
    built = workload.build(workload.draw(np.random.default_rng(0)))
    assert isinstance(built, BuiltKernel)
    assert not workload.difference(built)
    assert "512 of 512 values differ" in other.difference(built)


def main(count: int, at_once: int = 160) -> None:
    """Other programs than the tests', `at_once` of an operator in memory."""
    tried = failed = wrong = 0
    for operator in OPERATORS:
        for number in range(-(-count // at_once)):
            found = _try(cases(operator), min(at_once, count - number * at_once), seed=10 + number)
            print(*(one for one in found if one.build_error or one.wrong), sep="\n", end="")
            tried += len(found)
            failed += sum(bool(one.build_error) for one in found)
            wrong += sum(bool(one.wrong) for one in found)
        print(f"{operator}: {tried} programs so far, {failed} failed to build, {wrong} wrong", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
