"""Search curves: their points, their queries and their plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.report import plots
from benchmarks.results.curves import Point
from benchmarks.results.searches import SEARCHES, Search

TIMED = [(1.0, math.inf), (2.0, 5e-3), (2.5, 5e-3), (3.0, 4e-3), (4.0, 4e-3)]
# The second program was lucky, which its second measurement shows.
LUCKY = Search.of("GMM", "ours", [(1.0, 5e-3), (2.0, 3e-3), (3.0, 4.5e-3), (4.0, 4e-3)])
SEARCH = Search.of("GMM", "ours", TIMED)
FAILED = Search.of("GMM", "MetaSchedule", [(1.0, math.inf), (2.0, math.inf)])


def test_only_a_new_best_latency_is_a_point() -> None:
    assert Search("GMM", "ours", (Point(2.0, 2, 5e-3), Point(3.0, 4, 4e-3)), 5, 4.0) == SEARCH


def test_failures_count_as_trials_and_seconds() -> None:
    assert Search("GMM", "MetaSchedule", (), 2, 2.0) == FAILED
    assert FAILED.trials_per_s == 1.0
    assert FAILED.best_after(2) is None
    assert FAILED.reached(math.inf) is None


def test_without_trials_there_is_no_rate() -> None:
    assert Search.of("GMM", "ours", []) == Search("GMM", "ours", (), 0, 0.0)
    assert Search.of("GMM", "ours", []).trials_per_s is None


@pytest.mark.parametrize(("trials", "best_s"), [(1, None), (2, 5e-3), (3, 5e-3), (4, 4e-3), (99, 4e-3)])
def test_the_best_latency_after_a_number_of_trials_is_found(trials: int, best_s: float | None) -> None:
    assert SEARCH.best_after(trials) == best_s


@pytest.mark.parametrize(("latency_s", "at_s"), [(1.0, 2.0), (5e-3, 2.0), (4.9e-3, 3.0), (4e-3, 3.0)])
def test_a_quality_is_reached_by_the_first_that_is_no_slower(latency_s: float, at_s: float) -> None:
    point = SEARCH.reached(latency_s)
    assert point is not None
    assert point.at_s == at_s


def test_an_unreached_quality_has_no_time() -> None:
    assert SEARCH.reached(3.9e-3) is None


@pytest.mark.parametrize(
    ("latency_s", "at_s"), [(5e-3, 1.0), (4.6e-3, 2.0), (4.5e-3, 2.0), (4.4e-3, 4.0), (3e-3, None)]
)
def test_a_lucky_measurement_does_not_count_as_reached(latency_s: float, at_s: float | None) -> None:
    point = LUCKY.reached(latency_s)
    assert (None if point is None else point.at_s) == at_s


def test_the_best_after_some_trials_has_its_final_timing() -> None:
    assert [LUCKY.best_after(trials) for trials in (1, 2, 3, 4)] == [5e-3, 3e-3, 4.5e-3, 4e-3]


def test_searches_are_read_again(tmp_path: Path) -> None:
    SEARCHES.write([SEARCH, FAILED], tmp_path / "operators.json")
    assert (tmp_path / "operators.searches.jsonl").exists()
    assert SEARCHES.read(tmp_path / "operators.json") == (SEARCH, FAILED)


@pytest.mark.parametrize("draw", [plots.draw_searches_by_seconds, plots.draw_searches_by_trials])
def test_plots_name_their_operators_and_engines(draw: Callable[[Sequence[Search]], bytes]) -> None:
    found = [Search.of("C2D", "ours", TIMED[:2]), SEARCH, Search.of("GMM", "MetaSchedule", TIMED[1:])]
    image = draw(found)
    assert image == draw(found)
    for text in (b">GMM<", b">C2D<", b">ours<", b">MetaSchedule<", b"times the fastest"):
        assert text in image
    assert (b">seconds of the search<" in image) == (draw is plots.draw_searches_by_seconds)
