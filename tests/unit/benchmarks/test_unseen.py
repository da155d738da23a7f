"""The comparison on unseen layers continues with existing results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.operators import unseen
from benchmarks.operators.__main__ import main
from benchmarks.operators.unseen import LayerResult
from benchmarks.results.curves import Point
from benchmarks.results.searches import Search
from benchmarks.timing.finals import Milestone, SearchResult
from benchmarks.timing.interleaved import Timings

LAYER = "dense-77x3072x768"


def searched(engine: str, latency_s: float) -> SearchResult:
    curve = Search(LAYER, engine, (Point(2.0, 1, latency_s),), 1, 2.0)
    return SearchResult(curve, (Milestone(1, latency_s, Timings((latency_s, latency_s))),))


def test_earlier_measurements_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "unseen.json"
    found = LayerResult(LAYER, "native", searched("ours", 0.002), searched("MetaSchedule", 0.003))
    unseen.RESULTS.write([found], file)
    given = ["--unseen", "--resume", "--layer", LAYER, "--trials", "1", "--threads", "1"]
    assert main([*given, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"native, {LAYER}: speed-up over MetaSchedule, after 1 trial" in shown
    assert "MetaSchedule: 3 ms, ours: 2 ms" in shown
    assert unseen.RESULTS.read(file) == (found,)
