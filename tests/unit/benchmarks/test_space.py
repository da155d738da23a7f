"""The comparison of two spaces: its figures, its plans and its failures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import figures
from benchmarks.results.figures import Figure
from benchmarks.results.random_programs import RANDOM_PROGRAMS
from benchmarks.space import __main__ as space
from benchmarks.space import run as space_run
from benchmarks.space.figures import density, figures_of
from benchmarks.space.run import OperatorResult, Plan, Rates
from benchmarks.suite import OPERATORS
from benchmarks.timing.interleaved import Pair, Timings
from benchmarks.timing.isolation import MeasurementFailed
from benchmarks.timing.measurer import Candidate, fastest

PLAN = Plan(programs=3, trials=8, threads=2)
FOUND = OperatorResult(
    operator="GMM",
    ours_s=(1e-3, 2e-3, 9e-3),
    theirs_s=(1e-3, 8e-3, 9e-3),
    errors=(),
    random=Pair(Timings((1e-3, 1.1e-3, 1e-3)), Timings((2e-3, 2e-3, 2e-3))),
    ceiling=Pair(Timings((1e-3, 1e-3)), Timings((0.8e-3, 0.8e-3))),
    rates=Rates(Timings((1e-5, 1e-5)), Timings((1e-3, 2e-3)), Timings((2e-3, 2e-3))),
)


def _named(found: list[Figure], part: str) -> Figure:
    (one,) = [each for each in found if part in each.name]
    return one


def test_density_is_the_median_over_the_best() -> None:
    assert density((4.0, 2.0, 1.0)) == 2.0
    assert density((1.0, 3.0, math.inf)) == 3.0
    assert density((1.0, math.inf, math.inf)) == math.inf
    assert density((math.inf, math.inf)) == math.inf


def test_the_geometric_mean_has_half_of_metaschedules_as_its_aim() -> None:
    other = replace(FOUND, operator="C2D", ours_s=(1.0, 8.0, 9.0), theirs_s=(1.0, 2.0, 3.0), rates=None)
    found = figures_of([FOUND, other], PLAN)
    mean = _named(found, "geometric mean of 2 operators: median over best latency relative")
    assert mean.value == pytest.approx((2 * 8) ** 0.5 / (8 * 2) ** 0.5)
    assert mean.reached is False
    better = _named(
        figures_of([FOUND], PLAN), "geometric mean of 1 operators: median over best latency relative"
    )
    assert better.value == pytest.approx(0.25)
    assert better.reached is True


def test_an_operator_most_of_whose_programs_failed_is_named_and_left_out_of_the_mean() -> None:
    bad = replace(FOUND, operator="C2D", ours_s=(1e-3, math.inf, math.inf))
    found = figures_of([FOUND, bad], PLAN)
    assert found[0].value == pytest.approx(2)
    assert found[0].note is not None
    assert found[0].note.endswith("without C2D, where most failed")
    failed = _named(found, "C2D: random programs that failed")
    assert (failed.value, failed.reached, failed.note) == (2, False, "MetaSchedule: 0")
    assert not [each for each in found if each.name.startswith("GMM: random programs that failed")]


def test_finals_are_ratios_of_latencies_turn_by_turn() -> None:
    found = figures_of([FOUND], PLAN)
    random = _named(found, "GMM: latency relative to MetaSchedule, of the best of 3 random programs")
    assert random.value == pytest.approx(0.5)
    assert random.reached is True
    ceiling = _named(found, "GMM: latency relative to MetaSchedule, after 8 trials")
    assert ceiling.value == pytest.approx(1.25)
    assert (ceiling.reached, ceiling.note) == (False, "MetaSchedule: 0.8 ms, ours: 1 ms")


@pytest.mark.parametrize("operator", ["softmax", "layer_norm", "GELU", "attention"])
def test_operators_with_exponentials_should_be_twice_as_fast(operator: str) -> None:
    found = figures_of([replace(FOUND, operator=operator)], PLAN)
    assert _named(found, f"{operator}: latency relative to MetaSchedule, after").aim == "at most 0.5"


def test_without_finalists_there_is_no_final() -> None:
    found = figures_of([replace(FOUND, random=None, ceiling=None, rates=None)], PLAN)
    assert [each.name for each in found if each.name.startswith("GMM")] == [
        "GMM: median over best latency, of 3 random programs"
    ]


def test_rates_are_programs_a_second() -> None:
    rate, lowered = (each for each in figures_of([FOUND], PLAN) if "sampled a second" in each.name)
    assert rate.value == pytest.approx(1e5)
    assert (rate.reached, rate.note) == (True, "MetaSchedule: 500 /s")
    assert lowered.condition == "one at a time and lowered"
    assert lowered.spread is not None
    assert lowered.spread[0] < lowered.value < lowered.spread[1]


def test_finalists_are_the_fastest_different_ones_that_ran() -> None:
    a, b, c = (Candidate("module", trace) for trace in "abc")
    timed = [(a, 3.0), (b, 1.0), (None, math.inf), (c, math.inf), (b, 1.1), (a, 2.0)]
    assert fastest(timed, 3) == [b, a]
    assert fastest(timed, 1) == [b]
    assert fastest([(None, math.inf)], 3) == []


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Plan]]:
    """Record operators instead of measuring them; C3D fails."""
    seen: list[tuple[str, Plan]] = []

    def note(
        name: str, threads: int, run: Callable[..., OperatorResult], given: str, plan: Plan
    ) -> OperatorResult:
        assert (run, given, threads) == (space_run.run, name, plan.threads)
        seen.append((name, plan))
        if name == "C3D":
            raise MeasurementFailed("a candidate of C3D ended the process that timed it")
        return replace(FOUND, operator=name, errors=("build_error: no schedule",) if name == "C1D" else ())

    monkeypatch.setattr(space, "run_isolated", note)
    return seen


def test_quick_measures_three_operators(tmp_path: Path, measured: list[tuple[str, Plan]]) -> None:
    file = tmp_path / "space.json"
    assert space.main(["--quick", "--threads", "2", "--json", str(file)]) == 0
    assert [name for name, _ in measured] == ["GMM", "C2D", "softmax"]
    assert {(plan.programs, plan.trials, plan.threads) for _, plan in measured} == {(16, 32, 2)}
    results = figures.read(file)
    assert results.command == f"python -m benchmarks.space --quick --threads 2 --json {file}"
    assert results.figures[0].name.startswith("geometric mean of 3 operators")
    assert [each.operator for each in RANDOM_PROGRAMS.read(file)] == [
        "GMM",
        "C2D",
        "softmax",
    ]


def test_only_programs_that_ran_are_drawn_fastest_first() -> None:
    found = replace(FOUND, ours_s=(3.0, math.inf, 1.0))
    assert found.random_programs().ours_s == (1.0, 3.0)


def test_the_whole_suite_goes_on_after_a_failure(
    tmp_path: Path, measured: list[tuple[str, Plan]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "space.json"
    assert space.main(["--json", str(file)]) == 1
    assert [name for name, _ in measured] == list(OPERATORS)
    assert {(plan.programs, plan.trials) for _, plan in measured} == {(64, 256)}
    told = capsys.readouterr()
    assert told.err == "benchmarks.space: a candidate of C3D ended the process that timed it\n"
    assert "failed: build_error: no schedule" in told.out
    names = [each.name for each in figures.read(file).figures]
    assert any(name.startswith("attention:") for name in names)
    assert not any(name.startswith("C3D:") for name in names)


def test_options_are_passed_on(tmp_path: Path, measured: list[tuple[str, Plan]]) -> None:
    options = ["--operator", "NRM", "--programs", "5", "--trials", "7", "--rounds", "2", "--seed", "9"]
    assert space.main([*options, "--threads", "3", "--json", str(tmp_path / "space.json")]) == 0
    assert measured == [("NRM", Plan(programs=5, trials=7, threads=3, rounds=2, seed=9))]


@pytest.mark.parametrize("wrong", [["--programs", "0"], ["--trials", "-1"], ["--operator", "LSTM"], []])
def test_wrong_flags_are_refused(wrong: list[str], tmp_path: Path) -> None:
    where = ["--json", str(tmp_path / "space.json")] if wrong else []
    with pytest.raises(SystemExit):
        space.main([*wrong, *where])


def test_a_folder_that_is_missing_is_noticed_at_once(
    tmp_path: Path, measured: list[tuple[str, Plan]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        space.main(["--json", str(tmp_path / "absent" / "space.json")])
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err
    assert not measured
