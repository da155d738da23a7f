"""The comparison of two searches: its figures, its plans and its failures."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.operators import __main__ as operators
from benchmarks.operators import ablation, settled
from benchmarks.operators import run as operators_run
from benchmarks.operators.figures import correction, figures_of, quality, time_to_match
from benchmarks.operators.libraries import Compared
from benchmarks.operators.run import OURS, THEIRS, WARM, OperatorResult, Plan
from benchmarks.results import figures
from benchmarks.results.figures import Figure
from benchmarks.results.output import Output
from benchmarks.results.searches import SEARCHES, Search
from benchmarks.timing import isolation
from benchmarks.timing.finals import Milestone, SearchResult, milestones_up_to
from benchmarks.timing.interleaved import Pair, Timings
from benchmarks.timing.isolation import MeasurementFailed

AS_FAST = "tuning speed-up over MetaSchedule, time to reach its 64-trial result"
PLAN = Plan(trials=64, threads=2)


def _timings(secs: float) -> Timings:
    return Timings((secs, secs, secs))


def _result(
    engine: str, timed: list[tuple[float, float]], milestones: dict[int, tuple[float, float]]
) -> SearchResult:
    """`milestones` has (searched, in turns) seconds by trials."""
    found = tuple(Milestone(n, searched, _timings(turns)) for n, (searched, turns) in milestones.items())
    return SearchResult(Search.of("GMM", engine, timed), found)


# In turns everything of ours takes a tenth longer than its search measured.
SEARCHED = [(1.0, 4e-3), (2.0, 2e-3), (3.0, 1e-3)]
OUR_MILESTONES = {8: (4e-3, 4.4e-3), 16: (2e-3, 2.2e-3), 64: (1e-3, 1.1e-3)}
NOTHING = [(1.0, math.inf), (4.0, math.inf)]
FOUND = OperatorResult(
    operator="GMM",
    ours=_result(OURS, SEARCHED, OUR_MILESTONES),
    theirs=_result(
        THEIRS,
        [(20.0, 8e-3), (50.0, 2e-3), (60.0, 2e-3)],
        {8: (8e-3, 8.8e-3), 16: (8e-3, 4.4e-3), 64: (2e-3, 2.2e-3)},
    ),
    warm=_result(WARM, [(0.5, 2e-3), (1.0, 1e-3)], {64: (1e-3, 1.1e-3)}),
    set_up_s=15.0,
    precision=(Pair(Timings((1.0, 1.0, 1.0)), Timings((1.0, 1.5, 2.0))),),
    scored=Pair(Timings((1e-6, 1e-6)), Timings((2e-3, 2e-3))),
    libraries=(Compared((1, 2, 3), _timings(1e-3), {"numpy": _timings(2e-3)}, ("PyTorch",)),),
    errors=(),
)


def _named(found: list[Figure], part: str) -> Figure:
    (one,) = [each for each in found if part in each.name]
    return one


def _named_exactly(found: list[Figure], name: str) -> Figure:
    (one,) = [each for each in found if each.name == name]
    return one


def _overall(found: list[Figure], part: str) -> Figure:
    return _named([each for each in found if not each.name.startswith(("GMM", "C2D"))], part)


def test_time_to_match_uses_timings_in_turns() -> None:
    """MetaSchedule's best takes 2.2 ms in turns, as ours does when its search measured 2 ms."""
    assert correction(FOUND.ours) == pytest.approx(1.1)
    found = time_to_match(FOUND, FOUND.ours, 64)
    assert found is not None
    assert (found.at_s, found.trials) == (2.0, 2)
    assert (found.ratio, found.own_ratio) == (30.0, 25.0)


def test_a_program_slower_in_turns_matches_later() -> None:
    """If 2 ms in the search are 2.4 ms in turns, only the next program is as fast as 2.2 ms."""
    milestones = tuple(
        replace(each, timings=_timings(1.2 * each.searched_s)) for each in FOUND.ours.milestones
    )
    found = time_to_match(FOUND, replace(FOUND.ours, milestones=milestones), 64)
    assert found is not None
    assert found.at_s == 3.0


def test_a_search_that_stays_slower_has_no_time_to_match() -> None:
    goal = (*FOUND.theirs.milestones[:2], Milestone(64, 5e-4, _timings(5e-4)))
    hard = replace(FOUND, theirs=replace(FOUND.theirs, milestones=goal))
    assert time_to_match(hard, hard.ours, 64) is None
    found = figures_of([hard, replace(FOUND, operator="C2D")], PLAN)
    mean = _named_exactly(found, f"geometric mean of 1 operators: {AS_FAST}")
    assert mean.value == pytest.approx(30.0)
    never = _named_exactly(found, "searches that never reached MetaSchedule's result")
    assert (never.value, never.reached, never.note) == (1, False, "GMM")


def test_time_to_quality_is_a_geometric_mean_with_its_aim() -> None:
    slow = replace(FOUND, operator="C2D", ours=_result(OURS, [(30.0, 1e-3)], {64: (1e-3, 1e-3)}))
    found = figures_of([FOUND, slow], PLAN)
    name = f"geometric mean of 2 operators: {AS_FAST}"
    mean = _named_exactly(found, name)
    assert mean.value == pytest.approx((30.0 * 2.0) ** 0.5)
    assert (mean.reached, mean.note) == (False, "2 (C2D) .. 30 (GMM)")
    best = _named_exactly(found, f"{name}, MetaSchedule's time until its best program")
    assert best.value == pytest.approx((25.0 * 50 / 30) ** 0.5)
    assert best.aim is None
    warm = _named_exactly(found, f"{name}, other shapes known")
    assert (warm.value, warm.reached) == (pytest.approx(120.0), True)
    never = _named_exactly(found, "searches that never reached MetaSchedule's result")
    assert (never.value, never.unit) == (0, "of 2")


def test_an_operator_says_how_long_both_took() -> None:
    found = figures_of([FOUND], PLAN)
    one = _named_exactly(found, "GMM: tuning speed-up over MetaSchedule, time to reach its 64-trial result")
    assert one.note == "MetaSchedule: 60 s, 15 s of it set-up; ours: 2 s, 2 trials"


def test_quality_is_the_speedup_after_equal_numbers_of_trials() -> None:
    after = quality(FOUND, 8)
    assert after is not None
    assert after.value == pytest.approx(2.0)
    found = figures_of([FOUND], PLAN)
    for trials, value, aim in ((8, 2.0, 1.5), (16, 2.0, 1.5), (64, 2.0, 1.05)):
        mean = _overall(found, f"1 operators: speed-up over MetaSchedule, after {trials} trials")
        assert mean.value == pytest.approx(value)
        assert (mean.aim, mean.reached) == (f"at least {aim:g}", True)
    assert _named(found, "GMM: speed-up over MetaSchedule, after 64").aim == "at least 0.97"


def test_the_operator_with_the_lowest_speedup_is_named() -> None:
    worse = _result(OURS, SEARCHED, OUR_MILESTONES | {64: (2.5e-3, 2.5e-3)})
    found = figures_of([FOUND, replace(FOUND, operator="C2D", ours=worse)], PLAN)
    lowest = _named(found, "lowest speed-up")
    assert (lowest.value, lowest.reached, lowest.note) == (pytest.approx(0.88), False, "C2D")


def test_if_all_our_programs_fail_the_figures_say_so() -> None:
    lost = replace(FOUND, operator="C2D", ours=_result(OURS, NOTHING, {}))
    found = figures_of([FOUND, lost], PLAN)
    assert quality(lost, 8) is None
    mean = _named(found, "geometric mean of 1 operators: speed-up over MetaSchedule, after 8 ")
    assert mean.note is not None
    assert mean.note.endswith("without C2D")
    failed = _named(found, "searches without a program of ours, after 8 trials")
    assert (failed.value, failed.reached, failed.note) == (1, False, "C2D")
    assert _named_exactly(found, "searches that never reached MetaSchedule's result").note == "C2D"


def test_if_all_of_metaschedules_programs_fail_there_is_no_time_to_match() -> None:
    lost = replace(FOUND, operator="C2D", theirs=_result(THEIRS, NOTHING, {}), scored=None, precision=())
    assert time_to_match(lost, lost.ours, 64) is None
    found = figures_of([lost], PLAN)
    assert not [each for each in found if "speed-up over MetaSchedule" in each.name]
    assert _overall(found, "trials a second relative").value == pytest.approx(1.0 / (2 / 4.0))
    both = figures_of([FOUND, lost], PLAN)
    never = _named_exactly(both, "searches that never reached MetaSchedule's result")
    assert (never.value, never.unit) == (0, "of 1")


def test_an_operator_without_any_result_has_no_figures() -> None:
    empty = SearchResult(Search.of("GMM", OURS, []), ())
    lost = replace(
        FOUND, ours=empty, theirs=empty, warm=empty, scored=None, precision=(), libraries=(), errors=("why",)
    )
    assert figures_of([lost], PLAN) == []


def test_figures_have_rates_spreads_and_scored_candidates() -> None:
    found = figures_of([FOUND], PLAN)
    rate = _overall(found, "trials a second relative to MetaSchedule")
    assert (rate.value, rate.reached) == (pytest.approx(1.0 / (3 / 60.0)), True)
    spread = _overall(found, "spread of repeated measurements")
    assert (spread.value, spread.note) == (0, "MetaSchedule: 53.3 %; 10th to 90th percentile over the median")
    scored = _named(found, "GMM: candidates scored")
    assert (scored.value, scored.reached) == (pytest.approx(1e6), True)
    assert scored.note == "MetaSchedule: 500 /s"


def test_libraries_are_compared_with_the_faster_engine_and_missing_ones_named() -> None:
    found = figures_of([FOUND], PLAN)
    one = _named(found, "GMM 1x2x3: speed-up over numpy")
    assert (one.value, one.reached) == (pytest.approx(2.0), True)
    assert one.note == "ours: 1 ms; numpy: 2 ms; PyTorch is not installed"
    two = Compared((1,), _timings(1e-3), {"numpy": _timings(2e-3), "PyTorch": _timings(0.5e-3)})
    found = figures_of([replace(FOUND, libraries=(two,))], PLAN)
    assert _named(found, "speed-up over PyTorch").reached is False


def test_milestones_end_with_the_trials() -> None:
    assert PLAN.milestones == (8, 16, 64)
    assert Plan(trials=32, threads=1).milestones == (8, 16, 32)
    longer = Plan(trials=256, threads=1)
    assert longer.milestones == (8, 16, 64, 256)
    assert (longer.shape_trials("GMM"), longer.shape_trials("DEP")) == (128, 64)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Plan]]:
    """Record operators instead of measuring them; C3D fails."""
    seen: list[tuple[str, Plan]] = []

    def note(
        name: str, threads: int, run: Callable[..., OperatorResult], given: str, plan: Plan
    ) -> OperatorResult:
        assert (run, given, threads) == (operators_run.run, name, plan.threads)
        seen.append((name, plan))
        if name == "C3D":
            raise MeasurementFailed("a candidate of C3D ended the process that timed it")
        return replace(FOUND, operator=name, errors=("a finalist: wrong",) if name == "C1D" else ())

    monkeypatch.setattr(operators, "run_isolated", note)
    return seen


def test_quick_measures_three_operators(
    tmp_path: Path, measured: list[tuple[str, Plan]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "operators.json"
    assert operators.main(["--quick", "--threads", "2", "--json", str(file)]) == 0
    assert measured == [(name, Plan(64, 2, rounds=5)) for name in ("GMM", "C1D", "DEP")]
    results = figures.read(file)
    assert results.command == f"python -m benchmarks.operators --quick --threads 2 --json {file}"
    kept = SEARCHES.read(file)
    assert len(kept) == 9
    assert {search.engine for search in kept} == {OURS, THEIRS, WARM}
    assert "C1D (2 of 3, about 1 min left)" in capsys.readouterr().out


def test_the_paper_s_operators_go_on_after_a_failure(
    tmp_path: Path, measured: list[tuple[str, Plan]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "operators.json"
    assert operators.main(["--threads", "2", "--json", str(file)]) == 1
    assert len(measured) == 12
    assert {plan for _, plan in measured} == {Plan(256, 2)}
    told = capsys.readouterr()
    assert told.err == "benchmarks.operators: a candidate of C3D ended the process that timed it\n"
    assert "C1D: a finalist: wrong" in told.out
    names = [each.name for each in figures.read(file).figures]
    assert any(name.startswith("TBS:") for name in names)
    assert not any(name.startswith("C3D:") for name in names)


def test_when_nothing_can_be_measured_nothing_is_written(
    tmp_path: Path, measured: list[tuple[str, Plan]]
) -> None:
    file = tmp_path / "operators.json"
    assert operators.main(["--operator", "C3D", "--json", str(file)]) == 1
    assert not file.exists()


def test_the_time_left_comes_from_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("benchmarks.operators", [], Path("none.json"), 1)
    ticks = iter((0.0, 600.0, 600.0))
    assert isolation.measure_each(["GMM", "C2D"], 120.0, lambda _: None, output, lambda: next(ticks)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "GMM (1 of 2, about 4 min left)",
        "C2D (2 of 2, about 10 min left)",
    ]


@pytest.mark.parametrize(
    "wrong",
    [["--trials", "0"], ["--operator", "LSTM"], ["--ablation", "--settled"], []],
)
def test_wrong_flags_are_refused(wrong: list[str], tmp_path: Path) -> None:
    where = ["--json", str(tmp_path / "operators.json")] if wrong else []
    with pytest.raises(SystemExit):
        operators.main([*wrong, *where])


def test_a_folder_that_is_missing_is_noticed_at_once(
    tmp_path: Path, measured: list[tuple[str, Plan]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        operators.main(["--json", str(tmp_path / "absent" / "operators.json")])
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err
    assert not measured


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BrokenProcessPool(), "a candidate of GMM ended the process"),
        (RuntimeError("a finalist crashed"), "GMM could not be measured: a finalist crashed"),
    ],
)
def test_an_exception_is_a_failure_of_the_operator(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    class Breaking:
        def __enter__(self) -> Breaking:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, *_: object) -> None:
            raise error

    monkeypatch.setattr(isolation, "spawn_process", Breaking)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    with pytest.raises(MeasurementFailed, match=told):
        isolation.run_isolated("GMM", 2, operators_run.run, "GMM", PLAN)


def _variants(operator: str) -> tuple[SearchResult, ...]:
    """Return variants: twice as slow without evolution, no program in the limited space."""
    late = {16: (2e-3, 3e-3), 64: (1e-3, 2e-3)}
    found = (
        _result(ablation.EVERYTHING, SEARCHED, {16: (1e-3, 2e-3), 64: (1e-3, 1e-3)}),
        _result("no evolution", SEARCHED, late),
        _result("limited space", NOTHING, {}),
    )
    return tuple(replace(result, curve=replace(result.curve, operator=operator)) for result in found)


def test_an_ablation_compares_ours_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(name: str, threads: int, run: Callable[..., object], *given: object) -> tuple[SearchResult, ...]:
        assert (run, given) == (ablation.run, (name, 64, 5, 2, 7))
        return _variants(name)

    monkeypatch.setattr(operators, "run_isolated", note)
    file = tmp_path / "ablation.json"
    flags = ["--ablation", "--quick", "--threads", "2", "--seed", "7", "--json", str(file)]
    assert operators.main(flags) == 0
    kept = SEARCHES.read(file)
    assert kept == tuple(result.curve for name in ("GMM", "C1D", "DEP") for result in _variants(name))
    found = figures.read(file).figures
    assert [each.value for each in found] == pytest.approx([1.5, 2.0])
    assert not any("limited space" in each.name for each in found)


def test_an_ablation_is_measured_after_some_trials_and_after_all() -> None:
    found = ablation.figures_of(_variants("GMM"), 64)
    names = [each.name for each in found]
    start = "geometric mean of 1 operators: latency with no evolution relative to everything"
    assert names == [f"{start}, after {count} trials" for count in (16, 64)]
    assert milestones_up_to(256, ablation.AFTER) == (16, 64, 256)


# After 64 trials a tenth slower than after all, with the second figure for the operator itself.
LONGER = _result(
    OURS, SEARCHED, {16: (2e-3, 2e-3), 64: (1e-3, 1.1e-3), 256: (1e-3, 1e-3), 1000: (1e-3, 1e-3)}
)


@pytest.mark.parametrize(("trials", "aim"), [(256, None), (1000, "at most 1.03")])
def test_64_trials_are_compared_with_a_thousand(trials: int, aim: str | None) -> None:
    found = settled.figures_of([LONGER], trials)
    one = _overall(found, f"latency after 64 trials relative to {trials} trials")
    assert (one.value, one.aim) == (pytest.approx(1.1), aim)
    assert _named_exactly(found, f"GMM: {one.name.partition(': ')[2]}").value == pytest.approx(1.1)


def test_an_operator_without_a_program_is_named_and_in_no_mean() -> None:
    lost = replace(LONGER, curve=replace(LONGER.curve, operator="C2D"), milestones=())
    one = _overall(settled.figures_of([LONGER, lost], 1000), "after 64 trials")
    assert one.name.startswith("geometric mean of 1 operators")
    assert one.note is not None
    assert one.note.endswith("without C2D")


def test_settled_goes_on_for_a_thousand_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(name: str, threads: int, run: Callable[..., object], *given: object) -> tuple[SearchResult, ...]:
        assert (run, given) == (settled.run, (name, 1000, 10, 2, 0))
        return (replace(LONGER, curve=replace(LONGER.curve, operator=name)),)

    monkeypatch.setattr(operators, "run_isolated", note)
    file = tmp_path / "settled.json"
    assert operators.main(["--settled", "--threads", "2", "--json", str(file)]) == 0
    assert [search.operator for search in SEARCHES.read(file)] == list(operators.PAPER)
    names = [each.name for each in figures.read(file).figures]
    assert names[1] == "geometric mean of 12 operators: latency after 64 trials relative to 1000 trials"
