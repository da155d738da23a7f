"""Fit shape factors to programs whose seconds are computed from known factors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit.fitting import agreement, estimated, fit, loss
from benchmarks.fit.programs import Group, ProgramsError, line_of_device, line_of_program, read
from benchmarks.suite import OPERATORS
from compiler.reading.subgraph import read_dag
from search.cost.analytic import estimate
from search.cost.cost_parameters import FITTED
from search.programs.annotate import sample
from search.rules.space import generate
from tests.devices import PROFILE
from tests.unit.search.dags import DEVICE

CALIBRATED = replace(DEVICE, profile=PROFILE)
SHAPE = (32, 32, 64)
# Spilling costs far more than assumed, and launching threads far less.
TRUE = replace(FITTED, spill_cycles=FITTED.spill_cycles * 3, launch=FITTED.launch / 4)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of programs whose seconds follow from the true factors; one of them failed."""
    file = tmp_path_factory.mktemp("fit") / "programs.jsonl"
    dag = read_dag(OPERATORS["GMM"].module(SHAPE))
    lines = [line_of_device("board", CALIBRATED)]
    for sketch in generate(dag, CALIBRATED):
        population = sample(sketch, 40, np.random.default_rng(0))
        seconds = [*estimate(population, CALIBRATED, TRUE).seconds[:-1], np.inf]
        for row, secs in enumerate(seconds):
            lines.append(line_of_program("GMM", "GMM", SHAPE, 1, "board", population.program(row), secs))
    file.write_text("\n".join(lines))
    return file


@pytest.fixture(scope="module")
def group(programs: Path) -> Group:
    (found,) = read(programs)
    return found


def test_a_file_holds_the_measurements_of_each_layer_and_class(group: Group) -> None:
    assert (group.name, group.operator, group.device_class) == ("GMM", "GMM", "board")
    assert group.device.profile == PROFILE
    assert sum(map(len, group.populations)) == len(group.seconds) > 0
    assert np.isfinite(group.seconds).all()
    assert estimated(group, TRUE) == pytest.approx(group.seconds)


def test_true_factors_agree_with_the_measurements(group: Group) -> None:
    found = agreement(group, TRUE)
    assert found.rank == pytest.approx(1.0)
    assert found.bias == pytest.approx(0.0, abs=1e-9)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert 1.0 <= found.regret < 1.5
    assert found.loss < agreement(group, FITTED).loss


@pytest.mark.slow_lane
def test_a_fit_comes_closer_to_the_truth(group: Group) -> None:
    said: list[str] = []
    found = fit([group], FITTED, said.append)
    assert loss([group], found) < 0.5 * loss([group], FITTED) + 0.5 * loss([group], TRUE)
    assert said


@pytest.mark.slow_lane(seconds=3)
def test_factors_without_data_stay_unchanged(group: Group) -> None:
    """The factors for partial results and inlining don't change a matrix product's estimate."""
    found = fit([group], FITTED, steps=(1.25,))
    assert found.row_cycles == FITTED.row_cycles
    assert found.inline_cycles == FITTED.inline_cycles


@pytest.mark.parametrize("text", ["no json", "{}", '{"layer": "GMM", "device_class": "none", "seconds": 1}'])
def test_another_file_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "programs.jsonl"
    file.write_text(text)
    with pytest.raises(ProgramsError, match=r"programs.jsonl holds no measured programs"):
        read(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramsError, match=r"missing can't be read: No such file"):
        read(tmp_path / "missing")


def test_programs_without_a_sketch_are_left_out(programs: Path, tmp_path: Path) -> None:
    older = tmp_path / "older.jsonl"
    older.write_text(programs.read_text().replace('"sketch": "', '"sketch": "older '))
    assert read(older) == []
