"""Both engines' cost models on programs that neither has seen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import models
from benchmarks.fit.programs import line_of_device, line_of_program
from benchmarks.models import (
    ESTIMATE,
    FITS,
    OURS,
    THEIRS,
    MeasuredPrograms,
    figures_of,
    measured,
    predict_held_out,
    recorded,
)
from benchmarks.suite import OPERATORS
from compiler.target import detect_device

SMALL = (64, 64, 64)


@pytest.fixture(scope="module")
def known() -> dict[str, MeasuredPrograms]:
    return {"GMM": measured(OPERATORS["GMM"].module(SMALL), detect_device(2), 40, 0)}


@pytest.mark.slow_lane(seconds=5)
def test_every_cost_model_is_evaluated_on_held_out_programs(known: dict[str, MeasuredPrograms]) -> None:
    for who, fit in FITS.items():
        told = predict_held_out(known, fit, 0)["GMM"]
        assert told.shape == known["GMM"].run_s.shape, who
        assert (told > 0).all(), who
        assert len(np.unique(told)) > 10, who


@pytest.mark.slow_lane(seconds=5)
def test_held_out_programs_are_not_trained_on(known: dict[str, MeasuredPrograms]) -> None:
    """The model that predicts a program wasn't trained on it."""
    held = {"GMM": np.arange(len(known["GMM"].run_s)) % 2 == 0}
    secs = known["GMM"].run_s
    other = {"GMM": replace(known["GMM"], run_s=np.where(held["GMM"], 3 * secs, secs))}
    for who in (OURS, ESTIMATE):
        np.testing.assert_array_equal(FITS[who](known, held)["GMM"], FITS[who](other, held)["GMM"], who)


@pytest.mark.slow_lane(seconds=5)
def test_failures_are_learned_from(known: dict[str, MeasuredPrograms]) -> None:
    failing = replace(known["GMM"], run_s=np.where(np.arange(40) == 7, math.inf, known["GMM"].run_s))
    told = {who: predict_held_out({"GMM": failing}, fit, 0) for who, fit in FITS.items()}
    names = [each.name for each in figures_of({"GMM": failing}, told)]
    assert "GMM: rank correlation of the estimate with 39 measured latencies" in names


@pytest.mark.slow_lane(seconds=5)
def test_a_file_of_programs_has_the_measured_seconds(
    known: dict[str, MeasuredPrograms], tmp_path: Path
) -> None:
    gmm, file = known["GMM"], tmp_path / "programs.jsonl"
    lines = [
        line_of_program("small", "GMM", SMALL, 1, "native", program, secs)
        for program, secs in zip(gmm.programs, gmm.run_s, strict=True)
    ]
    file.write_text("\n".join([line_of_device("native", gmm.task.device), *lines]))
    found = recorded(file)["native, small"]
    assert dict(zip(found.traces, found.run_s, strict=True)) == dict(zip(gmm.traces, gmm.run_s, strict=True))
    assert models.main(["--recorded", str(tmp_path / "none"), "--json", str(tmp_path / "models.json")]) == 1


@pytest.mark.slow_lane(seconds=5)
def test_the_command_compares_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(OPERATORS["GMM"], benchmark=SMALL)
    monkeypatch.setattr(models, "OPERATORS", {"GMM": small})
    file = tmp_path / "models.json"
    assert models.main(["--operator", "GMM", "--programs", "24", "--threads", "2", "--json", str(file)]) == 0
    found = {figure["name"]: figure for figure in json.loads(file.read_text())["figures"]}
    pairs = found["all operators: pairs in the right order, of programs not trained on"]
    assert 0 <= pairs["value"] <= 1
    assert THEIRS in pairs["note"]
    assert -1 <= found["GMM: rank correlation of the estimate with 24 measured latencies"]["value"] <= 1
