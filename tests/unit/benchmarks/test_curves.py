"""Tuning curves are stored one per line, and settle where they stay low."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results.curves import CURVES, Curve, Point
from benchmarks.results.figures import FiguresError


def _curve(*latencies_s: float) -> Curve:
    points = tuple(Point(float(i), i * 16, secs) for i, secs in enumerate(latencies_s))
    return Curve("resnet18", points, 0.012, 0.5, 0.011)


def test_curves_are_read_again(tmp_path: Path) -> None:
    kept = (_curve(0.3, 0.2), _curve())
    CURVES.write(kept, tmp_path / "networks.json")
    assert len((tmp_path / "networks.curves.jsonl").read_text().splitlines()) == 2
    assert CURVES.read(tmp_path / "networks.json") == kept
    assert CURVES.read(tmp_path / "absent.json") == ()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.curves.jsonl").write_text('{"figures": []}\n')
    with pytest.raises(FiguresError, match=r"a\.curves\.jsonl holds no curves"):
        CURVES.read(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("latencies_s", "at_s"),
    [((3.0, 2.0, 1.05, 1.0), 2.0), ((1.05, 2.0, 1.0), 2.0), ((1.0,), 0.0)],
    ids=["falls", "rises again", "one point"],
)
def test_a_curve_settles_at_the_first_point_that_stays_low(
    latencies_s: tuple[float, ...], at_s: float
) -> None:
    point = _curve(*latencies_s).settled()
    assert point is not None
    assert point.at_s == at_s


def test_a_curve_without_points_never_settles() -> None:
    assert _curve().settled() is None
