"""Sample, search and time both engines' spaces of small workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engines.metaschedule_space import MetaScheduleSpace
from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.results import figures
from benchmarks.space import __main__ as space
from benchmarks.timing.finals import median_seconds
from benchmarks.timing.interleaved import Block
from benchmarks.timing.measurer import Candidate, Finalist, ProgramMeasurer, seconds
from compiler.measuring.builder import BuiltKernel
from compiler.target import detect_device
from core.measurement import Outcome
from tests.suite import Case

DEVICE = detect_device()
CASE = Case("GMM", (16, 32, 64))


@pytest.mark.slow_lane(seconds=10)
def test_our_random_and_searched_programs_are_measured() -> None:
    ours, measurer = TunefarmSearch(CASE.module(), DEVICE), ProgramMeasurer(CASE.module(), DEVICE)
    rng = np.random.default_rng(0)
    first, *others = ours.random(6, rng)
    assert any(one != first for one in others)
    assert ours.sample_all(64, rng) > 64
    rounds: list[int] = []
    best_known: list[float] = []

    def measure(candidates: Sequence[Candidate | None], best_s: float) -> Iterator[float]:
        rounds.append(len(candidates))
        best_known.append(best_s)
        return measurer.timed(candidates, best_s)

    found = ours.tune(32, measure, rng)
    assert rounds == [8, 8, 16]
    medians = [median_seconds(found.trials[:done]) for done in (8, 16)]
    assert best_known == [math.inf, *(min(each.values()) for each in medians)]
    assert all(0 < trial.run_s < 1 for trial in found.trials)
    stamps = [trial.at_s for trial in found.trials]
    assert stamps == sorted(set(stamps))
    assert [secs for _, _, secs in found.samples] == list(median_seconds(found.trials).values())
    population = ours.population(1000, rng)
    assert 100 < ours.score(population, found.model) == len(population) <= 1000


def test_missing_and_wrong_candidates_have_an_infinite_latency() -> None:
    measurer = ProgramMeasurer(CASE.module(), DEVICE)
    other = Candidate.scheduled(Case("GMM", (16, 32, 49)).module())
    good = Candidate.scheduled(CASE.module())
    missing, wrong, right = measurer.measure([None, other, good])
    assert missing.outcome is Outcome.BUILD_ERROR
    assert wrong.outcome in (Outcome.WRONG_RESULT, Outcome.RUN_ERROR)
    assert (seconds(missing), seconds(wrong)) == (math.inf, math.inf)
    assert seconds(right) < 1


def test_a_finalist_is_timed_again() -> None:
    measurer = ProgramMeasurer(CASE.module(), DEVICE)
    (built,) = measurer.build([Candidate.scheduled(CASE.module())])
    assert isinstance(built, BuiltKernel)
    assert all(0 < secs < 1 for secs in Finalist(measurer, built).time_block(Block()))


@pytest.mark.slow_lane(seconds=10)
def test_metaschedules_random_and_searched_programs_are_measured(tmp_path: Path) -> None:
    theirs, measurer = MetaScheduleSpace(CASE.module(), DEVICE, 0), ProgramMeasurer(CASE.module(), DEVICE)
    assert 0 < len(theirs.sample()) <= 64
    candidates = theirs.random(70)
    assert len(candidates) == 70
    assert len(set(candidates)) > 60
    assert all(one.outcome is Outcome.OK for one in measurer.measure(candidates[:4]))
    found = theirs.tune(6, measurer, tmp_path)
    assert len(found) == 6
    assert all(0 < secs < 1 for _, secs in found)


@pytest.mark.slow_lane(seconds=10)
def test_the_benchmark_of_a_space_writes_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")  # the command sets it
    file = tmp_path / "space.json"
    small = ["--operator", "NRM", "--programs", "3", "--trials", "4", "--rounds", "2", "--threads", "2"]
    assert space.main([*small, "--json", str(file)]) == 0
    names = [figure.name for figure in figures.read(file).figures]
    assert [name for name in names if name.startswith("NRM") and "failed" not in name] == [
        "NRM: median over best latency, of 3 random programs",
        "NRM: latency relative to MetaSchedule, of the best of 3 random programs",
        "NRM: latency relative to MetaSchedule, after 4 trials",
    ]
