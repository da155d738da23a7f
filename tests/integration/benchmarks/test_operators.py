"""Real searches of both engines on small workloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engines import metaschedule_search
from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.operators import ablation, settled, variants
from benchmarks.operators import figures as operators_figures
from benchmarks.operators import run as operators_run
from benchmarks.operators.ablation import VARIANTS, NoEstimate
from benchmarks.operators.run import OURS, THEIRS, WARM, Plan
from benchmarks.suite import OPERATORS
from benchmarks.timing.interleaved import Block
from benchmarks.timing.measurer import Candidate, ProgramMeasurer
from compiler.measuring.builder import BuiltKernel
from compiler.target import detect_device
from search.policy import TuneContext
from search.programs.annotate import sample
from search.rules.space import generate
from tests.suite import Case

DEVICE = detect_device()
CASE = Case("GMM", (16, 32, 64))
SMALL = ((16, 32, 64), (32, 32, 32), (8, 16, 32), (16, 16, 16))


def _task(name: str) -> TuneContext:
    from compiler.reading.subgraph import read_dag

    dag = read_dag(CASE.module())
    return VARIANTS[name].task(dag, generate(dag, DEVICE), DEVICE)


def test_without_an_estimate_all_programs_are_equal() -> None:
    task = _task("no analytic model")
    assert isinstance(task, NoEstimate)
    programs = sample(task.sketches[0], 64, np.random.default_rng(0))
    features, guess = task.describe(programs)
    assert set(guess.seconds) == {1.0}
    assert len(np.unique(features, axis=0)) > 1


def test_the_limited_space_has_one_sketch_without_copies() -> None:
    (sketch,) = _task("limited space").sketches
    whole = _task(ablation.EVERYTHING).sketches
    assert sketch.key == whole[0].key
    left_out = set(whole[0].variable) - set(sketch.variable)
    assert left_out
    assert all(str(kind).startswith("read ") for _, kind in left_out)


@pytest.mark.slow_lane
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_searches(name: str) -> None:
    measurer = ProgramMeasurer(CASE.module(), DEVICE)
    space = TunefarmSearch(CASE.module(), DEVICE, VARIANTS[name])
    # Two rounds, so that the second learns from the first and evolves its programs, or doesn't.
    found = space.tune(10, measurer.timed, np.random.default_rng(0))
    assert len(found.trials) == 10
    assert all(0 < trial.run_s < 1 for trial in found.trials)


def test_metaschedule_can_time_our_programs(tmp_path: Path) -> None:
    measurer = ProgramMeasurer(CASE.module(), DEVICE)
    (built,) = measurer.build([Candidate.scheduled(CASE.module())])
    assert isinstance(built, BuiltKernel)
    (secs,) = metaschedule_search.Timer(CASE.module(), tmp_path).timing(built).time_block(Block())
    assert 0 < secs < 1


@pytest.mark.slow_lane
def test_a_search_is_compared_with_its_continuation(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(OPERATORS["GMM"], shapes=SMALL, benchmark=SMALL[0])
    monkeypatch.setattr(variants, "OPERATORS", {"GMM": small})
    (result,) = settled.run("GMM", trials=20, rounds=2, threads=DEVICE.cores, seed=0)
    assert [each.trials for each in result.milestones] == [16, 20]
    names = [each.name for each in settled.figures_of([result], 20)]
    name = "latency after 16 trials relative to 20 trials"
    assert names == [f"geometric mean of 1 operators: {name}", f"GMM: {name}"]


@pytest.mark.slow_lane(seconds=70)
@pytest.mark.timeout(900)
def test_the_benchmark_of_an_operator_writes_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(OPERATORS["GMM"], shapes=SMALL, benchmark=SMALL[0])
    monkeypatch.setattr(operators_run, "OPERATORS", {"GMM": small})
    plan = Plan(trials=10, threads=DEVICE.cores, rounds=2)
    found = operators_run.run("GMM", plan)
    assert found.errors == ()
    assert [search.engine for search in found.searches] == [OURS, THEIRS, WARM]
    assert [search.trials for search in found.searches] == [10, 10, 10]
    assert [each.trials for each in found.ours.milestones] == [8, 10]
    assert [each.trials for each in found.theirs.milestones] == [8, 10]
    stamps = [point.at_s for point in found.theirs.curve.points]
    assert 0 < found.set_up_s < stamps[0] <= stamps[-1] <= found.theirs.curve.seconds
    assert len(found.precision) == 2
    assert found.scored is not None
    assert [compared.shape for compared in found.libraries] == list(SMALL)
    names = [each.name for each in operators_figures.figures_of([found], plan)]
    assert "GMM: speed-up over MetaSchedule, after 10 trials" in names
    assert "GMM 8x16x32: speed-up over numpy" in names
