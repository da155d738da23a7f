"""Curves are kept a line each, and settle where they stay low."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import curves
from benchmarks.results.curves import Curve, Point


def _curve(*latencies_s: float) -> Curve:
    points = tuple(Point(float(i), i * 16, secs) for i, secs in enumerate(latencies_s))
    return Curve("resnet18", points, 0.012, 0.5, 0.011)


def test_curves_are_read_again(tmp_path: Path) -> None:
    path = curves.beside(tmp_path / "networks.json")
    kept = (_curve(0.3, 0.2), _curve())
    curves.write(kept, path)
    assert path.name == "networks.curves.jsonl"
    assert len(path.read_text().splitlines()) == 2
    assert curves.read(path) == kept
    assert curves.read(tmp_path / "absent.curves.jsonl") == ()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.curves.jsonl").write_text('{"figures": []}\n')
    with pytest.raises(ValueError, match="network"):
        curves.read(tmp_path / "a.curves.jsonl")


@pytest.mark.parametrize(
    ("latencies_s", "at_s"),
    [((3.0, 2.0, 1.05, 1.0), 2.0), ((1.05, 2.0, 1.0), 2.0), ((1.0,), 0.0)],
    ids=["falls", "rises again", "one point"],
)
def test_it_settles_at_the_first_point_that_stays_low(latencies_s: tuple[float, ...], at_s: float) -> None:
    point = _curve(*latencies_s).settled()
    assert point is not None
    assert point.at_s == at_s


def test_a_curve_without_points_never_settles() -> None:
    assert _curve().settled() is None
