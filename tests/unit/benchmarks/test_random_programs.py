"""Latencies of random programs, kept one operator a line, and their plot."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import plots
from benchmarks.results.random_programs import RANDOM_PROGRAMS, RandomPrograms

KEPT = (RandomPrograms("GMM", (1e-3, 2e-3), (1e-3, 4e-3, 9e-3)), RandomPrograms("softmax", (), (2e-3,)))


def test_programs_are_read_again(tmp_path: Path) -> None:
    RANDOM_PROGRAMS.write(KEPT, tmp_path / "space.json")
    assert RANDOM_PROGRAMS.read(tmp_path / "space.json") == KEPT


def test_a_plot_names_its_operators_and_engines() -> None:
    image = plots.draw_random_programs(KEPT)
    assert image == plots.draw_random_programs(KEPT)
    for text in (b">GMM<", b">softmax<", b">ours<", b">MetaSchedule<"):
        assert text in image
