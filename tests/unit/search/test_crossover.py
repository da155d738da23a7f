"""Children of two programs: every node comes from the parent in which it scores better."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from search.evolution.crossover import cross, node_groups
from search.evolution.scored import Scored
from search.programs.program import Population
from search.rules.space import generate
from search.sketches.sketch import Sketch
from tests.unit.search import dags
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import all_programs, drawn, program_of, seeds, sketches


def _columns(sketch: Sketch, nodes: frozenset[str]) -> list[int]:
    return [
        column
        for (owner, _), where in sketch.columns.items()
        if owner in nodes
        for column in range(where.start, where.stop)
    ]


def _scored(population: Population) -> Scored:
    """Score a stage by the sum of its variables."""
    sketch = population.sketch
    stages = {
        stage.node: population.values[:, _columns(sketch, frozenset([stage.node]))].sum(axis=1).astype(float)
        for stage in sketch.stages
    }
    seconds = np.sum([*stages.values()], axis=0)
    return Scored(population, seconds, stages, np.zeros((len(population), 0), np.float32), seconds)


@given(sketches, seeds)
def test_each_node_group_comes_from_the_better_parent(sketch: Sketch, seed: int) -> None:
    first = drawn(sketch, seed)
    second = first.take(np.arange(len(first))[::-1])
    children = cross(_scored(first), _scored(second))
    all_programs(children)
    groups = node_groups(sketch)
    assert sorted(column for nodes in groups for column in _columns(sketch, nodes)) == [
        *range(sketch.num_columns)
    ]
    for nodes in groups:
        own = _columns(sketch, nodes)
        sums = [parent.values[:, own].sum(axis=1) for parent in (first, second)]
        better = np.where((sums[1] < sums[0])[:, None], second.values[:, own], first.values[:, own])
        assert np.array_equal(children.values[:, own], better)


def test_a_child_joins_the_best_parts_of_its_parents() -> None:
    sketch = generate(dags.two_matmuls(), DEVICE)[0]
    parents = [
        program_of(sketch, first={"unroll": of_first}, second={"unroll": of_second})
        for of_first, of_second in ((0, 512), (512, 0))
    ]
    left, right = (Population(sketch, np.array([program.values])) for program in parents)
    (child,) = all_programs(cross(_scored(left), _scored(right)))
    assert (child.choice("first", "unroll"), child.choice("second", "unroll")) == (0, 0)


def test_nodes_computed_in_anothers_loops_stay_together() -> None:
    """The row's maximum and sum may be computed in the loops of the result."""
    by_size = [sorted(map(len, node_groups(sketch))) for sketch in generate(dags.softmax(), DEVICE)]
    assert max(sizes[-1] for sizes in by_size) > 1
