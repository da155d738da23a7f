"""The document's sections are made from files of figures, and nothing around them changes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.report import __main__ as report
from benchmarks.results import curves, searches
from benchmarks.results.curves import Curve, Point
from benchmarks.results.figures import FiguresError, Results, at_least, figure
from benchmarks.results.searches import Search

DOCUMENT = """# Benchmarks

Before.

<!-- begin networks -->

Old.

<!-- end networks -->

<!-- begin operators -->
Others.
<!-- end operators -->
"""
RESULTS = Results(
    (figure("speed-up", 32.5, "x", aim=at_least(30), peer="1 + 2 |b|", spread=(31.0, 33.5)),),
    "a machine",
    "2025-01-02",
    "python -m benchmarks.networks",
)
CURVE = Curve("resnet18", (Point(10.0, 16, 0.05), Point(20.0, 64, 0.02)), 0.012, 0.5, 0.011)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    (tmp_path / "docs" / "benchmarks.md").write_text(DOCUMENT)
    RESULTS.write(tmp_path / "docs" / "benchmarks" / "networks.json")
    curves.write([CURVE], tmp_path / "docs" / "benchmarks" / "networks.curves.jsonl")
    return tmp_path / "docs"


def _run(folder: Path, name: str = "networks.json") -> int:
    file = str(folder / "benchmarks" / name)
    return report.main([file, "--document", str(folder / "benchmarks.md"), "--plots", str(folder / "plots")])


def test_the_section_is_replaced_and_only_it(folder: Path) -> None:
    assert _run(folder) == 0
    text = (folder / "benchmarks.md").read_text()
    assert text.startswith("# Benchmarks\n\nBefore.\n\n<!-- begin networks -->\n")
    assert text.endswith("<!-- end networks -->\n\n" + DOCUMENT.split("<!-- end networks -->\n\n")[1])
    assert "Old." not in text
    assert "| speed-up | 32.5 x | 31 .. 33.5 | at least 30: reached | 1 + 2 \\|b\\| |" in text
    assert "Measured 2025-01-02 with `python -m benchmarks.networks` on a machine." in text


def test_running_it_again_changes_nothing(folder: Path) -> None:
    files = [folder / "benchmarks.md", folder / "plots" / "networks-resnet18.svg"]
    assert _run(folder) == 0
    first = [file.read_bytes() for file in files]
    assert _run(folder) == 0
    assert [file.read_bytes() for file in files] == first


def test_curves_are_drawn_small_and_linked_from_the_document(folder: Path) -> None:
    _run(folder)
    assert "(plots/networks-resnet18.svg)" in (folder / "benchmarks.md").read_text()
    drawn = (folder / "plots" / "networks-resnet18.svg").read_text()
    assert len(drawn) < 40_000
    assert all(word in drawn for word in ("ONNX Runtime", "TVM untuned", "seconds since the job was sent"))


def test_without_curves_there_is_a_table_alone(folder: Path) -> None:
    (folder / "benchmarks" / "networks.curves.jsonl").unlink()
    assert _run(folder) == 0
    assert "![" not in (folder / "benchmarks.md").read_text()


def test_a_document_without_the_section_is_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RESULTS.write(folder / "benchmarks" / "unknown.json")
    assert _run(folder, "unknown.json") == 1
    assert "<!-- begin unknown -->" in capsys.readouterr().err
    assert (folder / "benchmarks.md").read_text() == DOCUMENT


@pytest.mark.parametrize("name", ["networks.curves.jsonl", "absent.json"])
def test_files_without_figures_are_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert _run(folder, name) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_two_sections_of_one_name_are_too_many() -> None:
    twice = "<!-- begin a -->\n<!-- end a -->\n" * 2
    with pytest.raises(FiguresError, match="2 sections"):
        report.replace_section(twice, "a", "new")


@pytest.mark.parametrize("name", ["networks", "space", "operators", "settled", "ablation", "scale", "fuzz"])
def test_the_document_kept_here_has_the_sections(name: str) -> None:
    text = Path("docs/benchmarks.md").read_text()
    assert "\nnew\n" in report.replace_section(text, name, "new")


def test_searches_are_drawn_against_seconds_and_trials(folder: Path) -> None:
    RESULTS.write(folder / "benchmarks" / "operators.json")
    found = [Search.of("GMM", engine, [(1.0, 2e-3), (2.0, 1e-3)]) for engine in ("ours", "MetaSchedule")]
    failed = Search.of("C2D", "ours", [(1.0, math.inf)])
    searches.write([failed, *found], folder / "benchmarks" / "operators.searches.jsonl")
    assert _run(folder, "operators.json") == 0
    text = (folder / "benchmarks.md").read_text()
    for name in ("seconds", "trials"):
        assert f"(plots/operators-{name}.svg)" in text
        assert "MetaSchedule" in (folder / "plots" / f"operators-{name}.svg").read_text()


def test_searches_that_are_none_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "benchmarks" / "networks.searches.jsonl").write_text("{}\n")
    assert _run(folder) == 1
    assert "networks.searches.jsonl holds no searches" in capsys.readouterr().err
