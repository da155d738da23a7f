"""Replay allocation strategies on recorded jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import allocation
from benchmarks.allocation import (
    ALLOCATOR,
    ALLOCATORS,
    EQUAL,
    PER_PICK,
    ROUND_ROBIN,
    WITHOUT_RANDOM_PICKS,
    WITHOUT_SIMILARITY,
    fewer_trials,
    figures_of,
    latency_s,
    redrawn,
    replay,
)
from benchmarks.results.recordings import RECORDINGS
from search.allocate import TaskProgress
from tests.unit.benchmarks.recorded import FLAT, STEEP, recording, task


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_allocator_spends_all_trials_and_ends_equally_fast(name: str) -> None:
    curve = replay(recording(FLAT, STEEP), ALLOCATORS[name], seed=0)
    assert [secs for _, secs in curve] == sorted((secs for _, secs in curve), reverse=True)
    assert curve[-1] == (256, pytest.approx(1e-3 + 8e-2 * 0.95**127))


def test_the_allocator_prefers_tasks_that_gain() -> None:
    many = [replace(FLAT, workload=f"flat{n}", base_workload=f"flat{n}") for n in range(9)]
    curves = {name: replay(recording(*many, STEEP), ALLOCATORS[name], 0) for name in (ALLOCATOR, EQUAL)}
    assert fewer_trials(curves[EQUAL], curves[ALLOCATOR], 0.5) > 1.2


def test_an_ablation_leaves_out_one_part_of_the_allocator() -> None:
    """Task b lags behind a of the same tag. Random picks depend on the generator, and nothing else does."""
    ahead, behind = (TaskProgress(1, 1.0, (secs,) * 8, 8, exhausted=False, tag="x") for secs in (1.0, 1.5))
    slow = TaskProgress(1, 1.0, (3.0,) * 8, 8, exhausted=False, tag="y")

    def given(name: str, seed: int) -> dict[int, int]:
        picks = ALLOCATORS[name]([ahead, behind, slow], np.random.default_rng(seed))
        return dict(sorted((task, sum(n for one, n in picks if one == task)) for task in range(3)))

    assert given(ALLOCATOR, 0)[1] > given(WITHOUT_SIMILARITY, 0)[1]
    assert len({str(given(WITHOUT_RANDOM_PICKS, seed)) for seed in range(20)}) == 1
    assert len({str(given(ALLOCATOR, seed)) for seed in range(20)}) > 1


def test_equal_shares_are_equal_and_round_robin_gives_whole_rounds() -> None:
    short = recording(task("a", [2.0] * 64), task("b", [1.0] * 63 + [0.5]))
    equal = replay(short, ALLOCATORS[EQUAL], 0)
    assert [trials for trials, _ in equal][:2] == [2 * PER_PICK, 4 * PER_PICK]
    in_turn = replay(short, ALLOCATORS[ROUND_ROBIN], 0)
    assert [trials for trials, _ in in_turn] == [32, 64, 96, 128]
    assert in_turn[0][1] == float("inf")


def test_a_task_whose_recording_is_used_up_gets_no_more() -> None:
    curve = replay(recording(task("a", [3.0, 2.0, 1.0]), task("b", [1.0] * 16)), ALLOCATORS[ALLOCATOR], 0)
    assert curve[-1] == (19, 2.0)


def test_the_fastest_task_of_a_base_workload_counts_and_failures_do_not() -> None:
    own, variant = (
        task("own", [None, 3.0], weight=2),
        task("variant", [1.0, None], base_workload="own", weight=2),
    )
    assert latency_s([own, variant, task("other", [5.0])]) == 7.0
    assert latency_s([own, task("broken", [None])]) == float("inf")


def test_a_seed_changes_the_order_within_two_picks_only() -> None:
    drawn = redrawn(recording(STEEP), seed=3)
    [found] = drawn.tasks
    assert found.seconds != STEEP.seconds
    for at in range(0, 128, 2 * PER_PICK):
        block = slice(at, at + 2 * PER_PICK)
        assert sorted(found.seconds[block], key=str) == sorted(STEEP.seconds[block], key=str)
    assert redrawn(recording(STEEP), seed=3) == drawn


def test_the_command_replays_stored_recordings(tmp_path: Path) -> None:
    kept, file = tmp_path / "recording.recordings.jsonl", tmp_path / "allocation.json"
    found = [recording(FLAT, STEEP), replace(recording(STEEP, FLAT), network="other")]
    RECORDINGS.write(found, tmp_path / "recording.json")
    assert allocation.main([str(kept), "--seeds", "2", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())["figures"]
    assert len(figures) == len(figures_of(found, 2))
    [aimed] = [each for each in figures if each["aim"]]
    assert aimed["name"].startswith(
        "median of all networks: trials with equal shares relative to the allocator"
    )
    assert aimed["note"] == "net, other"


def test_a_file_without_recordings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--json", str(tmp_path / "x.json")]
    assert allocation.main([str(tmp_path / "none.jsonl"), *out]) == 1
    assert "none.jsonl can't be read" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("")
    assert allocation.main([str(tmp_path / "empty.jsonl"), *out]) == 1
    assert "has no recordings" in capsys.readouterr().err
