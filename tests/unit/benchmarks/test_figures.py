"""Figures: compared with their aims, written, read again; other files are refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report.__main__ import FIGURES
from benchmarks.results import figures
from benchmarks.results.figures import Figure, FiguresError, Results, at_least, at_most, figure

RESULTS = Results(
    (
        figure(
            "speed-up",
            32.5,
            "x",
            peer="TVM untuned",
            subject="resnet18",
            aim=at_least(30),
            spread=(31.0, 33.5),
            note="untuned: 400 ms",
        ),
        figure("latency", 1.75, "x", peer="ONNX Runtime", condition="int8", aim=at_most(1.5)),
        figure("trials", 300, ""),
    ),
    machine="a machine",
    date="2025-01-02T03:04:05+00:00",
    command="python -m benchmarks.networks --json networks.json",
)


@pytest.mark.parametrize(
    ("aim", "value", "reached"),
    [
        (at_least(30), 29.9, False),
        (at_least(30), 30.0, True),
        (at_most(1.5), 1.5, True),
        (at_most(1.5), 1.51, False),
    ],
)
def test_a_value_equal_to_its_aim_reaches_it(aim: figures.Aim, value: float, reached: bool) -> None:
    assert figure("one", value, "x", aim=aim).reached is reached


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (figure("trials", 3, ""), "trials"),
        (figure("latency", 3, "ms", subject="resnet18", condition="OpenVINO"), "resnet18: latency, OpenVINO"),
        (figure("latency", 3, "x", peer="OpenVINO"), "latency relative to OpenVINO"),
        (
            figure(
                "speed-up", 3, "x", peer="OpenVINO", subject="conv", device_class="avx2", condition="cold"
            ),
            "avx2, conv: speed-up over OpenVINO, cold",
        ),
    ],
)
def test_the_name_is_a_sentence_of_the_fields(found: Figure, name: str) -> None:
    assert found.name == name


def test_every_stored_figure_is_named_by_its_fields() -> None:
    for file in FIGURES.glob("*.json"):
        for one in figures.read(file).figures:
            named = figure(
                one.metric,
                one.value,
                one.unit,
                peer=one.peer,
                subject=one.subject,
                condition=one.condition,
                device_class=one.device_class,
            )
            assert one.name == named.name, file.name


def test_the_file_has_exactly_the_fields_agreed_on(tmp_path: Path) -> None:
    RESULTS.write(tmp_path / "networks.json")
    data = json.loads((tmp_path / "networks.json").read_text())
    assert set(data) == {"figures", "machine", "date", "command", "commit", "instruction_set"}
    agreed = {"name", "value", "unit", "aim", "reached", "peer", "spread"}
    assert all(set(one) >= agreed for one in data["figures"])
    assert data["figures"][0] == {
        "name": "resnet18: speed-up over TVM untuned",
        "value": 32.5,
        "unit": "x",
        "metric": "speed-up",
        "peer": "TVM untuned",
        "subject": "resnet18",
        "aim": "at least 30",
        "bound": 30,
        "reached": True,
        "spread": [31.0, 33.5],
        "note": "untuned: 400 ms",
    }
    assert set(data["figures"][2]) == {*agreed, "metric"}, "empty fields are left out"
    assert data["figures"][2]["aim"] is data["figures"][2]["reached"] is None


def test_written_figures_are_read_back(tmp_path: Path) -> None:
    RESULTS.write(tmp_path / "networks.json")
    assert figures.read(tmp_path / "networks.json") == RESULTS
    assert [path.name for path in tmp_path.iterdir()] == ["networks.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("machine"),
        lambda data: data.update(curves=[]),
        lambda data: data["figures"][0].update(colour="red"),
        lambda data: data["figures"][0].update(value="fast"),
        lambda data: data["figures"][0].update(reached=None),
    ],
)
def test_files_that_hold_anything_else_are_refused(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "networks.json"
    RESULTS.write(path)
    data = json.loads(path.read_text())
    damage(data)  # type: ignore[operator]
    path.write_text(json.dumps(data))
    with pytest.raises(FiguresError, match="holds no figures"):
        figures.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FiguresError, match="absent"):
        figures.read(tmp_path / "absent.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figures_must_be_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="no measurement"):
        Figure("latency", value, "ms", "latency")
    with pytest.raises(ValueError, match="no measurement"):
        replace(RESULTS.figures[0], spread=(value, 1.0))


@pytest.mark.parametrize(
    ("value", "text"), [(0.00263, "0.00263"), (31.46, "31.5"), (12345.6, "12346"), (2.98e-7, "2.98e-07")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert figures.number(value) == text


def test_the_table_lists_missed_aims() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(figures.table(RESULTS.figures))
    lines = console.export_text().splitlines()
    assert "31 .. 33.5" in lines[1]
    assert "at least 30: reached" in lines[1]
    assert "at most 1.5: missed" in lines[2]
