"""Forecasts of the time left, replayed on recorded jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import time_left
from benchmarks.results.recordings import RECORDINGS
from benchmarks.time_left import figures_of
from tests.unit.benchmarks.recorded import FLAT, STEEP, recording


def test_the_forecast_of_a_steady_search_is_right_and_excludes_its_import() -> None:
    """Half a second a trial after an import of 10 s, and 1.3 times as long to publish."""
    found = {figure.name: figure.value for figure in figures_of([recording(FLAT, STEEP)])}
    late = "largest error of the time left, after a third of the job or later"
    assert found[f"net: {late}"] == found[f"all networks: {late}"] == pytest.approx(0.0, abs=1e-9)
    assert found["net: error of the time left, after the first batch"] == pytest.approx(0.0, abs=1e-9)
    # 32 trials in 26 s instead of 16, and nothing for publishing.
    rate = found["net: error of the last minute's rate, after the first batch"]
    assert rate == pytest.approx(224 * 26 / 32 / 125 - 1)


def test_the_command_reads_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, file = tmp_path / "recording.recordings.jsonl", tmp_path / "time_left.json"
    RECORDINGS.write([recording(FLAT, STEEP)], tmp_path / "recording.json")
    assert time_left.main([str(kept), "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())["figures"]) == 5
    assert time_left.main([str(tmp_path / "none"), "--json", str(file)]) == 1
    assert "none can't be read" in capsys.readouterr().err
