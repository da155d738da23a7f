"""Random programs' latencies are kept a line an operator, and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import plots
from benchmarks.results import random_programs
from benchmarks.results.random_programs import RandomPrograms

KEPT = (RandomPrograms("GMM", (1e-3, 2e-3), (1e-3, 4e-3, 9e-3)), RandomPrograms("softmax", (), (2e-3,)))


def test_programs_are_read_again(tmp_path: Path) -> None:
    path = random_programs.beside(tmp_path / "space.json")
    random_programs.write(KEPT, path)
    assert path.name == "space.drawn.jsonl"
    assert random_programs.read(path) == KEPT
    assert random_programs.read(tmp_path / "absent.drawn.jsonl") == ()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.drawn.jsonl").write_text('{"figures": []}\n')
    with pytest.raises(ValueError, match="operator"):
        random_programs.read(tmp_path / "a.drawn.jsonl")


def test_a_plot_names_its_operators_and_engines() -> None:
    image = plots.draw_drawn(KEPT)
    assert image == plots.draw_drawn(KEPT)
    for text in (b">GMM<", b">softmax<", b">ours<", b">MetaSchedule<"):
        assert text in image
