from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from search.evolution.evolve import EvolutionConfig, add_generation, evolve, share_children
from search.evolution.scored import Scored
from search.programs.nest import Floats
from search.programs.program import Population
from search.programs.validity import valid
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.variables import Split
from tests.unit.search import dags
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import all_programs, drawn, seeds, sketches

SMALL = EvolutionConfig(population=16, generations=2)


def _outer_trips(population: Population) -> Floats:
    """Predict made-up seconds: the fewer trips of the outermost tile level, the faster."""
    splits = [variable.key for variable in population.sketch.variables if isinstance(variable, Split)]
    columns = [population.sketch.columns[key].start for key in splits]
    return 1e-6 * (1.0 + population.values[:, columns].sum(axis=1))


def _stage_trips(population: Population) -> dict[str, Floats]:
    """Divide the made-up seconds among the stages."""
    splits = [variable for variable in population.sketch.variables if isinstance(variable, Split)]
    seconds = {stage.node: np.zeros(len(population)) for stage in population.sketch.stages}
    for split in splits:
        column = population.sketch.columns[split.key].start
        seconds[split.node] = seconds[split.node] + 1e-6 * population.values[:, column]
    return seconds


def _score(population: Population) -> Scored:
    seconds = _outer_trips(population)
    return Scored(
        population, seconds, _stage_trips(population), np.zeros((len(population), 0), np.float32), seconds
    )


def _mean_best(sketch: Sketch, config: EvolutionConfig) -> float:
    """Return the made-up seconds of the best program, the mean of five evolutions."""
    runs = (evolve([sketch], _score, [], np.random.default_rng(seed), config)[0] for seed in range(5))
    return float(np.mean([found.seconds[0] for found in runs]))


@given(sketches, seeds)
def test_found_programs_are_valid_distinct_and_fastest_first(sketch: Sketch, seed: int) -> None:
    [found] = evolve([sketch], _score, [], np.random.default_rng(seed), SMALL)
    population, seconds = found.population, found.seconds
    programs = all_programs(population)
    assert len(programs) == len(set(programs)) > 0
    assert valid(population).all()
    assert (np.diff(seconds) >= 0).all()
    assert np.array_equal(seconds, _outer_trips(population))


@given(sketches, seeds)
def test_the_same_seed_finds_the_same_programs_in_the_same_order(sketch: Sketch, seed: int) -> None:
    first, second = (
        evolve([sketch], _score, [], np.random.default_rng(seed), SMALL)[0].population.values
        for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_generations_find_better_programs_than_sampling() -> None:
    sketch = generate(dags.conv2d(), DEVICE)[0]
    best = []
    for generations in (0, 8):
        config = EvolutionConfig(population=64, generations=generations)
        runs = [
            evolve([sketch], _score, [], np.random.default_rng(seed), config)[0].seconds[0]
            for seed in range(5)
        ]
        best.append(np.mean(runs))
    assert best[1] < best[0]


def test_generations_follow_the_prediction() -> None:
    """Programs of later generations are faster on average than random ones, by selection alone."""
    sketch = generate(dags.conv2d(), DEVICE)[0]
    config = EvolutionConfig(population=256, generations=8)
    seconds = evolve([sketch], _score, [], np.random.default_rng(0), config)[0].seconds
    assert seconds.mean() < 0.8 * _outer_trips(drawn(sketch, 1, count=1000)).mean()


def test_the_best_measured_programs_join_the_first_population() -> None:
    sketch = generate(dags.conv2d(), DEVICE)[0]
    measured = all_programs(drawn(sketch, 5, count=8))
    config = EvolutionConfig(population=16, generations=0, measured_fraction=0.25)
    [found] = evolve([sketch], _score, measured, np.random.default_rng(0), config)
    met = set(all_programs(found.population))
    assert set(measured[:4]) <= met
    assert not set(measured[4:]) & met


def test_programs_of_other_sketches_are_left_out() -> None:
    first, second = generate(dags.conv2d(), DEVICE)[:2]
    measured = all_programs(drawn(second, 5, count=8))
    [found] = evolve([first], _score, measured, np.random.default_rng(0), SMALL)
    assert found.population.sketch is first


def test_evolution_continues_from_the_known_programs() -> None:
    """Each evolution scores children of the known programs and random ones, in one call."""
    sketch = generate(dags.conv2d(), DEVICE)[0]
    config = EvolutionConfig(population=8, generations=0)
    [first] = evolve([sketch], _score, [], np.random.default_rng(0), config)
    found = first
    predicted = []

    def score(population: Population) -> Scored:
        predicted.append(population)
        return _score(population)

    for seed in range(1, 4):
        known = found.take(np.arange(4))
        [found] = add_generation([known], score, [], np.random.default_rng(seed), config)
        assert not set(all_programs(known.population)) & set(all_programs(predicted[-1]))
        assert set(all_programs(known.population)) < set(all_programs(found.population))
        assert valid(found.population).all()
    assert len(predicted) == 3
    assert found.seconds[0] < first.seconds[0]


def test_the_best_measured_programs_join_a_continued_evolution() -> None:
    sketch = generate(dags.conv2d(), DEVICE)[0]
    config = EvolutionConfig(population=16, measured_fraction=0.25)
    known = _score(drawn(sketch, 1, count=8))
    measured = all_programs(drawn(sketch, 5, count=8))
    [found] = add_generation([known], _score, measured, np.random.default_rng(0), config)
    met = all_programs(found.population)
    assert set(measured[:4]) <= set(met)
    assert not set(measured[4:]) & set(met)
    assert len(met) == len(set(met))


def test_children_go_where_the_fastest_programs_are() -> None:
    config = EvolutionConfig(selection=1.0, min_children=16)
    sketches = generate(dags.conv2d(), DEVICE)[:3]
    first, second, third = (_score(drawn(sketch, 1, count=64)) for sketch in sketches)
    alike = [replace(one, seconds=np.ones(len(one))) for one in (first, second, third)]
    sizes = np.array([len(one) for one in alike])
    assert share_children(alike, 300, config) == np.round(300 * sizes / sizes.sum()).tolist()
    # Of two sketches with as many programs, one is predicted to be three times as fast.
    one, other = (first.take(np.arange(2)), second.take(np.arange(2)))
    one, other = replace(one, seconds=np.full(2, 3.0)), replace(other, seconds=np.ones(2))
    assert share_children([one, other], 100, config) == [25, 75]
    assert share_children([one, other], 60, config) == [0, 45], "too few for a generation"
    assert share_children([one, other], 8, config) == [0, 8]


def test_a_sketch_without_programs_has_no_children() -> None:
    sketch = generate(dags.conv2d(), DEVICE)[0]
    some = _score(drawn(sketch, 1, count=8))
    assert share_children([some.take(np.arange(0)), some], 100, EvolutionConfig()) == [0, 100]


@pytest.mark.parametrize(("population", "generations"), [(1, 4), (16, -1)])
def test_impossible_sizes_are_refused(population: int, generations: int) -> None:
    with pytest.raises(ValueError, match="at least two programs and no negative generations"):
        EvolutionConfig(population=population, generations=generations)


@pytest.mark.parametrize("crossover", [-0.1, 1.1, float("nan")])
def test_an_impossible_share_of_crossover_is_refused(crossover: float) -> None:
    with pytest.raises(ValueError, match="crossover must be a fraction from 0 to 1"):
        EvolutionConfig(crossover=crossover)


def test_crossover_alone_joins_the_best_stages() -> None:
    """Without mutations, programs get faster than any of the first population."""
    sketch = generate(dags.two_matmuls(), DEVICE)[0]
    best = []
    for generations in (0, 4):
        config = EvolutionConfig(population=64, generations=generations, crossover=1.0)
        runs = (
            evolve([sketch], _score, [], np.random.default_rng(seed), config)[0].seconds[0]
            for seed in range(5)
        )
        best.append(np.mean([*runs]))
    assert best[1] < 0.9 * best[0]
