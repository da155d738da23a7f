"""Ways to share trials, replayed on searches with known curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import allocation
from benchmarks.allocation import ALLOCATOR, ALLOCATORS, BUDGETS, EQUAL, figures_of, replay, task_of
from benchmarks.operators.run import OURS, THEIRS
from benchmarks.results.curves import Point
from benchmarks.results.searches import SEARCHES, Search
from search.allocate import TaskProgress

TRIALS = 256


def _falling(name: str, *latencies: tuple[int, float]) -> TaskProgress:
    """Return a task whose best latency changes to each value after its number of trials."""
    history = [
        next(seconds for since, seconds in reversed(latencies) if since <= trial)
        for trial in range(1, TRIALS + 1)
    ]
    return TaskProgress(1, 1e9, tuple(history), TRIALS, exhausted=False, tag=name)


FLAT = _falling("flat", (1, 1e-3))
STEEP = _falling("steep", *((1 + 4 * step, 8e-2 * 0.9**step) for step in range(60)))


@pytest.mark.parametrize("name", ALLOCATORS)
def test_more_trials_never_make_a_network_slower(name: str) -> None:
    found = replay([FLAT, STEEP], ALLOCATORS[name])
    assert len(found) == len(BUDGETS)
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_the_allocator_goes_where_something_is_gained() -> None:
    allocated, equal = (replay([FLAT] * 9 + [STEEP], ALLOCATORS[name]) for name in (ALLOCATOR, EQUAL))
    assert all(ours < theirs for ours, theirs in zip(allocated, equal, strict=True))


def test_equal_shares_are_equal() -> None:
    """Every task gets as many trials, whatever they gain."""
    found = replay([FLAT, STEEP], ALLOCATORS[EQUAL])
    expected = [FLAT.history[budget - 1] + STEEP.history[budget - 1] for budget in BUDGETS]
    assert found == pytest.approx(expected)


def test_trials_that_were_not_made_cannot_be_shared_out() -> None:
    short = TaskProgress(1, 1e9, (3e-3, 2e-3, 1e-3), 3, exhausted=False, tag="short")
    assert replay([short], ALLOCATORS[ALLOCATOR]) == [1e-3] * len(BUDGETS)


def test_everyone_is_compared_with_the_allocator() -> None:
    names = [each.name for each in figures_of([FLAT, STEEP], networks=3, seed=0)]
    assert len(names) == (len(ALLOCATORS) - 1) * len(BUDGETS)
    assert not any(name.startswith(ALLOCATOR) for name in names)


def test_a_search_is_a_task() -> None:
    task = task_of(Search("GMM", OURS, (Point(0.5, 2, 3e-3), Point(0.7, 4, 1e-3)), 5, 0.9))
    assert task.history == (float("inf"), 3e-3, 3e-3, 1e-3, 1e-3)
    assert task.flops == pytest.approx(2 * 512**3)


def test_the_command_replays_what_was_kept(tmp_path: Path) -> None:
    kept, file = tmp_path / "operators.searches.jsonl", tmp_path / "allocation.json"
    points = tuple(Point(0.1 * step, 8 * step - 7, 1e-2 * 0.9**step) for step in range(1, 30))
    found = [
        Search(name, engine, points, TRIALS, 30.0) for name in ("GMM", "C2D") for engine in (OURS, THEIRS)
    ]
    SEARCHES.write(found, tmp_path / "operators.json")
    assert allocation.main([str(kept), "--networks", "2", "--json", str(file)]) == 0
    assert "network of 2 tasks" in json.loads(file.read_text())["figures"][0]["name"]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert allocation.main([str(tmp_path / "none.jsonl"), "--json", str(tmp_path / "x.json")]) == 1
    assert "none.jsonl can't be read" in capsys.readouterr().err


def test_a_file_without_searches_of_ours_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SEARCHES.write([Search("GMM", THEIRS, (Point(0.5, 2, 3e-3),), 5, 0.9)], tmp_path / "operators.json")
    searches = SEARCHES.path(tmp_path / "operators.json")
    assert allocation.main([str(searches), "--json", str(tmp_path / "x.json")]) == 1
    assert "has no searches of ours" in capsys.readouterr().err
