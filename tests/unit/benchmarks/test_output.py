"""The output that a benchmark of several networks writes after each network."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results.figures import Figure, figure, read
from benchmarks.results.output import Output


def test_all_figures_so_far_are_written_after_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output("benchmarks.none", [], tmp_path / "figures.json", 1)
    found: list[Figure] = []
    folders = []

    def measure(name: str, folder: Path) -> list[Figure]:
        assert not list(folder.iterdir())
        folders.append(folder)
        if name == "broken":
            raise RuntimeError("it doesn't run")
        found.append(figure(name, 1.0, "ms"))
        return found

    assert output.measure_each(["one", "two"], measure) == 0
    assert "two" in capsys.readouterr().out
    assert output.measure_each(["three", "broken", "four"], measure) == 1
    assert capsys.readouterr().err == "benchmarks.none: it doesn't run\n"
    written = read(tmp_path / "figures.json").figures
    assert [each.name for each in written] == ["one", "two", "three"]
    assert not any(folder.exists() for folder in folders)
