from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.evolution.mutate import draw_primes, move_factor, mutate
from search.programs.annotate import keep_valid
from search.programs.program import Population
from search.programs.validity import valid
from search.rules.space import generate
from search.sketches.factors import factorizations
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice, Variable
from tests.unit.search import dags
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import (
    OPEN_SKETCHES,
    all_programs,
    drawn,
    middling,
    program_of,
    seeds,
    sketch_of,
    sketches,
)

# Tables of splits with more ways than this take too long to meet all of.
SMALL_TABLE = 64


@given(sketches, seeds)
def test_mutants_are_programs_that_differ_in_one_variable_at_most(sketch: Sketch, seed: int) -> None:
    parents = drawn(sketch, seed)
    children = mutate(parents, np.random.default_rng(seed))
    all_programs(children)
    for before, after in zip(parents.values, children.values, strict=True):
        changed = [where for where in sketch.columns.values() if (before[where] != after[where]).any()]
        assert len(changed) <= 1


@given(sketches, seeds)
def test_a_parent_is_never_changed(sketch: Sketch, seed: int) -> None:
    parents = drawn(sketch, seed)
    before = parents.values.copy()
    mutate(parents, np.random.default_rng(seed))
    assert np.array_equal(parents.values, before)


@given(st.integers(1, 200), st.integers(1, 4), seeds)
def test_moving_a_factor_preserves_the_product(extent: int, parts: int, seed: int) -> None:
    factors = factorizations(extent, parts, 64)
    rng = np.random.default_rng(seed)
    moved = move_factor(factors, draw_primes(np.full(len(factors), extent), rng), rng)
    assert (moved.prod(axis=1) == extent).all()
    assert (moved >= 1).all()
    if extent > 1 and parts > 1:
        assert (moved != factors).sum(axis=1).tolist() == [2] * len(factors)


def test_primes_are_drawn_with_their_multiplicity() -> None:
    drawn_primes = draw_primes(np.array([12] * 3000 + [7] * 10 + [1] * 10), np.random.default_rng(0))
    assert abs((drawn_primes[:3000] == 2).sum() - 2000) < 150
    assert set(drawn_primes[:3000].tolist()) == {2, 3}
    assert drawn_primes[3000:].tolist() == [7] * 10 + [1] * 10


@given(st.integers(2, 36), st.integers(2, 4))
def test_every_factorization_is_reachable_from_any_other(extent: int, parts: int) -> None:
    everything = {tuple(row) for row in factorizations(extent, parts, extent).tolist()}
    rng = np.random.default_rng(0)
    reached = {(extent, *[1] * (parts - 1))}
    for _ in range(60):
        current = np.array(sorted(reached) * 20)
        primes = draw_primes(np.full(len(current), extent), rng)
        reached |= {tuple(row) for row in move_factor(current, primes, rng).tolist()}
    assert reached == everything


@pytest.mark.parametrize("name", OPEN_SKETCHES)
def test_every_value_is_reachable_by_mutation(name: str) -> None:
    """From one program: every option of every choice and every way to split, one mutation at a time."""
    for sketch in {OPEN_SKETCHES[name][0], OPEN_SKETCHES[name][-1]}:
        start = np.array([middling(sketch).values])
        population = Population(sketch, np.repeat(start, 2000, axis=0))
        rng = np.random.default_rng(0)
        missing = {variable.key: _values(variable) for variable in sketch.variables}
        for _ in range(300):
            population = mutate(population, rng)
            for key, values in missing.items():
                values -= {tuple(row) for row in population.values[:, sketch.columns[key]].tolist()}
            missing = {key: values for key, values in missing.items() if values}
            if not missing:
                break
        assert not missing


def _values(variable: Variable) -> set[tuple[int, ...]]:
    if isinstance(variable, Choice):
        return {(option,) for option in range(len(variable.options))}
    table = variable.table if len(variable.table) <= SMALL_TABLE else variable.table[::8]
    return {tuple(row) for row in table.tolist()}


@given(sketches, seeds)
def test_legal_children_are_valid(sketch: Sketch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = drawn(sketch, seed)
    kept = keep_valid(mutate(parents, rng))
    assert valid(kept).all()
    assert np.array_equal(keep_valid(kept).values, kept.values)


def test_a_split_of_one_part_is_not_mutated() -> None:
    sketch = sketch_of(dags.max_pool(), "nest pad; tile pool SRS")
    population = drawn(sketch, 0)
    for _ in range(20):
        population = mutate(population, np.random.default_rng(0))
    assert (population.factors("pool", 4) == 3).all()


def test_partial_tiles_mutate_to_exact_tiles_and_back() -> None:
    sketch = sketch_of(dags.matmul(19, 101, 7), "tile matmul SSRSRS")
    exact = program_of(sketch, matmul={"i": (19, 1, 1, 1), "j": (1, 101, 1, 1)})
    partial = program_of(sketch, matmul={"i": (1, 5, 1, 4), "j": (1, 1, 7, 16)})
    for start, is_partial in ((exact, True), (partial, False)):
        parents = Population(sketch, np.repeat([start.values], 2000, axis=0))
        children = mutate(parents, np.random.default_rng(0))
        for axis, extent in enumerate((19, 101)):
            assert ((children.factors("matmul", axis).prod(axis=1) != extent) == is_partial).any()


def test_a_sketch_without_variables_is_not_mutated() -> None:
    (sketch,) = generate(dags.scalar(), DEVICE)
    alone = drawn(sketch, 0)
    assert mutate(alone, np.random.default_rng(0)).values.shape == (1, 0)
