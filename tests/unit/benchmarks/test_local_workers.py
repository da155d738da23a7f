"""Figures of two workers and of one, and physical cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import local_workers
from benchmarks.local_workers import Plan, WindowStats, figures_of, own_cores


def seen(per_s: float, cores: float = 0.1, failed: float = 0.02) -> WindowStats:
    return WindowStats(trials=100, seconds=100 / per_s, service_cpu_s=cores * 100 / per_s, failed=failed)


def test_every_turn_is_compared_by_itself() -> None:
    found = figures_of([seen(4.0), seen(2.0), seen(3.0)], [seen(7.6, 0.2), seen(3.8, 0.2), seen(5.4, 0.2)])
    gain, *others = found
    assert (gain.value, gain.unit, gain.reached) == (pytest.approx(1.9), "x", True)
    assert gain.spread == pytest.approx((1.82, 1.9))
    assert gain.note == "one worker: 3 /s"
    assert [(one.value, one.unit) for one in others] == [
        (pytest.approx(3.0), "/s"),
        (pytest.approx(0.1), ""),
        (pytest.approx(100 / 3), "ms"),
        (pytest.approx(2.0), "%"),
        (pytest.approx(5.4), "/s"),
        (pytest.approx(0.2), ""),
        (pytest.approx(200 / 5.4), "ms"),
        (pytest.approx(2.0), "%"),
    ]


def test_less_than_the_aim_is_missed() -> None:
    assert figures_of([seen(4.0)], [seen(7.0)])[0].reached is False


def test_the_clock_runs_over_the_middle_half() -> None:
    assert Plan(1, 400, (0, 1)).middle == (100, 300)


def topology(root: Path, cpus: dict[int, tuple[int, int]]) -> None:
    for cpu, (package, core) in cpus.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")


def test_two_threads_of_a_core_are_no_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6})
    topology(tmp_path, {0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (1, 0), 4: (1, 1)})
    assert own_cores() == [0, 2, 3, 6]


def test_a_single_core_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_workers, "own_cores", lambda: [3])
    assert local_workers.main(["--quick", "--json", str(tmp_path / "f.json")]) == 1
    assert capsys.readouterr().err == (
        "benchmarks.local_workers: two workers need two cores, and here is 1: use another machine\n"
    )
