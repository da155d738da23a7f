"""The learned model on programs that it wasn't trained on, whose seconds follow from known factors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import learning
from benchmarks.fit.programs import Group, line_of_device, line_of_program, read
from benchmarks.learning import (
    BATCH,
    SPLITS,
    Measured,
    figures_of,
    later_trials,
    networks,
    random_programs,
    workloads,
)
from benchmarks.suite import OPERATORS
from compiler.reading.subgraph import read_dag
from search.cost.analytic import estimate
from search.cost.cost_parameters import FITTED
from search.programs.annotate import sample
from search.rules.space import generate
from tests.devices import PROFILE
from tests.unit.search.dags import DEVICE

CALIBRATED = replace(DEVICE, profile=PROFILE)
TRUE = replace(FITTED, spill_cycles=FITTED.spill_cycles * 3, launch=FITTED.launch / 4)
SHAPES = ((32, 32, 64), (64, 32, 64), (32, 64, 128))
# The second measurement of a program takes this many times as long as the first one.
SLOWER = 1.1


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products of three shapes. Every eighth program was measured twice."""
    found = tmp_path_factory.mktemp("learning") / "programs.jsonl"
    lines = [line_of_device("board", CALIBRATED)]
    for shape in SHAPES:
        for sketch in generate(read_dag(OPERATORS["GMM"].module(shape)), CALIBRATED):
            population = sample(sketch, 30, np.random.default_rng(0))
            seconds = estimate(population, CALIBRATED, TRUE).seconds
            lines += [
                line_of_program(str(shape), "GMM", shape, 1, "board", population.program(row), secs * factor)
                for row, secs in enumerate(seconds)
                for factor in ((1.0, SLOWER) if row % 8 == 0 else (1.0,))
            ]
    found.write_text("\n".join(lines))
    return found


@pytest.fixture(scope="module")
def groups(file: Path) -> list[Group]:
    return read(file)


@pytest.fixture(scope="module")
def measured(groups: list[Group]) -> Measured:
    return Measured.of([replace(group, operator=group.name) for group in groups])


def test_a_program_that_was_measured_twice_is_one_program_with_its_median(groups: list[Group]) -> None:
    errors = np.concatenate([group.repeat_errors for group in groups])
    assert len(errors) > 10
    assert errors == pytest.approx(np.log(SLOWER))
    for group in groups:
        values = np.concatenate([each.values for each in group.populations])
        assert len(values) == len(group.seconds) == len(group.order)
        assert all(len(each.distinct()) == len(each) for each in group.populations)
        truth = np.concatenate([estimate(each, CALIBRATED, TRUE).seconds for each in group.populations])
        ratios = group.seconds / truth
        assert set(np.round(ratios, 6)) == {1.0, round((1 + SLOWER) / 2, 6)}


def test_the_noise_is_that_of_one_measurement(measured: Measured) -> None:
    assert measured.noise == pytest.approx(np.log(SLOWER) / np.sqrt(2))


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_no_program_is_trained_on_and_held_out(measured: Measured, split: learning.Split) -> None:
    folds = split(measured, np.random.default_rng(0))
    assert folds
    held = np.sum([fold for _, fold in folds], axis=0)
    assert held.max() == 1
    assert not any((trained & fold).any() for trained, fold in folds)


def test_each_split_holds_out_what_it_names(measured: Measured) -> None:
    rng = np.random.default_rng(0)
    [(_, fifth)] = random_programs(measured, rng)
    assert fifth.mean() == pytest.approx(0.2, abs=0.01)
    for split, of in ((workloads, measured.task), (networks, measured.network)):
        folds = split(measured, rng)
        assert len(folds) == len(SHAPES)
        for trained, held in folds:
            assert not set(of[trained]) & set(of[held])
    for number, (trained, held) in enumerate(later_trials(measured, rng), start=1):
        assert trained.sum() == number * BATCH
        assert measured.order[trained].max() < measured.order[held].min()


def test_a_single_network_is_not_held_out(measured: Measured) -> None:
    alone = replace(measured, network=np.zeros_like(measured.network))
    assert networks(alone, np.random.default_rng(0)) == []


def test_figures_name_the_estimate_and_the_ceiling(groups: list[Group]) -> None:
    found = {one.name: one for one in figures_of(groups, 2)}
    pairs = found["board: pairs in the right order, a random fifth held out"]
    assert pairs.bound == 0.851
    assert 0.5 < pairs.value <= 1.0
    assert "a perfect model, if measurements differ by 6.7%" in pairs.note
    assert not any("operators held out" in name for name in found), "all are of one operator"


def test_the_command_reads_recorded_programs(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "learning.json"
    assert learning.main(["--recorded", str(file), "--quick", "--json", str(out)]) == 0
    assert len(json.loads(out.read_text())["figures"]) == 9
    missing = ["--database", str(tmp_path / "none.db"), "--json", str(out)]
    assert learning.main(missing) == 1
