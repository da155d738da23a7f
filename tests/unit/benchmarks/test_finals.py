"""The best programs of several searches: which are timed in turns, and their milestones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.timing.finals import Trials, best, time_best_programs
from benchmarks.timing.measurer import Candidate, Trial
from core.measurement import Measurement, Outcome

A, B, WRONG, UNBUILT = (Candidate(name, None) for name in ("a", "b", "wrong", "unbuilt"))
SECONDS = {"a": 2e-3, "b": 1e-3}


class FakeMeasurer:
    """Builds a candidate into its name. `ran` counts the runs of each."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def build(self, candidates: Sequence[Candidate]) -> list[Any]:
        return [
            Measurement(Outcome.BUILD_ERROR, error="no") if one == UNBUILT else one.module_json
            for one in candidates
        ]

    def run(self, built: Any, best_s: float | None = None) -> Measurement:
        if isinstance(built, Measurement):
            return built
        self.ran[built] += 1
        if built in SECONDS:
            return Measurement(Outcome.OK, (SECONDS[built],))
        return Measurement(Outcome.WRONG_RESULT, error="values differ")


def _trials(*timed: tuple[Candidate | None, float]) -> list[Trial]:
    return [Trial(candidate, secs, float(at)) for at, (candidate, secs) in enumerate(timed, start=1)]


def _time(**searches: Trials) -> tuple[Any, FakeMeasurer, list[str]]:
    measurer: Any = FakeMeasurer()
    errors: list[str] = []
    return time_best_programs(measurer, "GMM", searches, 3, errors), measurer, errors


def test_the_best_after_every_milestone_is_timed_in_turns() -> None:
    tried = Trials(_trials((None, math.inf), (A, 3e-3), (B, 2e-3)), (1, 2, 3, 9))
    results, _, errors = _time(ours=tried)
    milestones = results["ours"].milestones
    assert [(one.trials, one.searched_s) for one in milestones] == [(2, 3e-3), (3, 2e-3), (9, 2e-3)]
    assert [one.timings.blocks for one in milestones] == [(2e-3,) * 3, (1e-3,) * 3, (1e-3,) * 3]
    assert results["ours"].curve.trials == 3
    assert results["ours"].after(1) is None
    assert not errors


def test_repeated_measurements_count_by_the_median() -> None:
    """The first program was lucky, and loses the lead with its second measurement."""
    tried = Trials(_trials((A, 1e-3), (B, 2e-3), (A, 4e-3)), (2, 3))
    results, _, _ = _time(ours=tried)
    assert [one.timings.blocks[0] for one in results["ours"].milestones] == [SECONDS["a"], SECONDS["b"]]
    assert [one.searched_s for one in results["ours"].milestones] == [2.5e-3, 2e-3]
    assert [point.latency_s for point in results["ours"].curve.points] == [1e-3, 2e-3]


def test_a_program_found_by_several_searches_is_timed_once_a_turn() -> None:
    tried = Trials(_trials((A, 3e-3)), (1,))
    results, measurer, _ = _time(ours=tried, theirs=tried)
    assert results["ours"].milestones == results["theirs"].milestones
    assert measurer.ran["a"] == 4  # to verify it, and in three turns


def test_wrong_and_broken_programs_are_never_the_best() -> None:
    theirs = Trials(_trials((UNBUILT, 5e-3), (WRONG, 1e-3), (A, 4e-3)), (1, 3))
    results, _, errors = _time(ours=Trials(_trials((B, 1e-3)), (1,)), theirs=theirs)
    assert results["theirs"].milestones == ()
    assert len(results["ours"].milestones) == 1
    assert errors == ["a finalist: build_error: no", "a finalist: wrong_result: values differ"]


def test_finals_without_contestants_are_empty() -> None:
    results, _, errors = _time(ours=Trials(_trials((A, math.inf)), (1,)), theirs=Trials([], (1,)))
    assert (results["ours"].milestones, results["theirs"].milestones, errors) == ((), (), [])
    assert best([]) == []
