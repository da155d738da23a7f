from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from search.factors import factorizations
from search.mutate import cross, move_factor, mutate
from search.program import Population
from search.sketch import Sketch, generate
from tests.unit.search import dags
from tests.unit.search.programs import all_programs, drawn, seeds, sketches


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
    cross(parents, parents, np.random.default_rng(seed))
    assert np.array_equal(parents.values, before)


@given(st.integers(1, 200), st.integers(1, 4), seeds)
def test_moving_a_factor_preserves_the_product(extent: int, parts: int, seed: int) -> None:
    factors = factorizations(extent, parts, 64)
    moved = move_factor(factors, extent, np.random.default_rng(seed))
    assert (moved.prod(axis=1) == extent).all()
    assert (moved >= 1).all()
    if extent > 1 and parts > 1:
        assert (moved != factors).sum(axis=1).tolist() == [2] * len(factors)


@given(st.integers(2, 36), st.integers(2, 4))
def test_every_factorization_is_reachable_from_any_other(extent: int, parts: int) -> None:
    everything = {tuple(row) for row in factorizations(extent, parts, extent).tolist()}
    rng = np.random.default_rng(0)
    reached = {(extent, *[1] * (parts - 1))}
    for _ in range(60):
        current = np.array(sorted(reached) * 20)
        reached |= {tuple(row) for row in move_factor(current, extent, rng).tolist()}
    assert reached == everything


@given(sketches, seeds)
def test_crossing_takes_every_node_whole_from_one_parent(sketch: Sketch, seed: int) -> None:
    pool = drawn(sketch, seed)
    first, second = pool, pool.take(np.arange(len(pool))[::-1])
    children = cross(first, second, np.random.default_rng(seed))
    all_programs(children)
    nodes = {variable.node for variable in sketch.variables}
    for row in range(len(children)):
        for node in nodes:
            columns = [
                c for (owner, _), w in sketch.columns.items() if owner == node for c in range(w.start, w.stop)
            ]
            given_by = [parent.values[row, columns].tolist() for parent in (first, second)]
            assert children.values[row, columns].tolist() in given_by


def test_crossing_mixes_nodes_of_both_parents() -> None:
    sketch = generate(dags.softmax())[0]
    first = Population(sketch, np.repeat(drawn(sketch, 1).values[:1], 200, axis=0))
    second = Population(sketch, np.repeat(drawn(sketch, 1).values[-1:], 200, axis=0))
    assert len(cross(first, second, np.random.default_rng(0)).distinct()) == 4


def test_every_variable_mutates() -> None:
    sketch = generate(dags.conv2d())[0]
    parents = Population(sketch, np.repeat(drawn(sketch, 3).values[:1], 2000, axis=0))
    children = mutate(parents, np.random.default_rng(0))
    changed = (children.values != parents.values).any(axis=0)
    assert all(changed[where].any() for where in sketch.columns.values())


def test_a_sketch_without_variables_stays_as_it_is() -> None:
    (sketch,) = generate(dags.add_relu())
    alone = drawn(sketch, 0)
    assert len(mutate(alone, np.random.default_rng(0))) == 1
    assert math.prod(cross(alone, alone, np.random.default_rng(0)).values.shape) == 0
