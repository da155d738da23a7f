from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from search.programs.program import Population, Program, from_json, gather, sort_keys
from search.rules.space import generate
from search.sketches.factors import Ints, covers
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice, Split
from search.stages.cpu import extent_in_block
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

TILED_SKETCHES = [sketch for found in OPEN_SKETCHES.values() for sketch in found if sketch.tiled]
CHOOSING_SKETCHES = [
    sketch
    for found in OPEN_SKETCHES.values()
    for sketch in found
    if any(isinstance(v, Choice) for v in sketch.variables)
]


@given(sketches, seeds)
def test_factors_of_every_axis_cover_its_extent(sketch: Sketch, seed: int) -> None:
    for program in all_programs(drawn(sketch, seed, count=8)):
        for stage in sketch.tiled:
            node = sketch.dag.node[stage.node]
            for position, axis in enumerate(node.axes):
                factors = program.factors(stage.node, position)
                assert len(factors) == stage.structure.count(axis.kind)
                split = sketch.variable.get((stage.node, position))
                assert isinstance(split, Split | None)
                extent = extent_in_block(node, stage, position)
                assert covers(factors, extent, split.tail) if split else factors == (1,) * len(factors)


@given(sketches, seeds)
def test_a_program_survives_json(sketch: Sketch, seed: int) -> None:
    program = drawn(sketch, seed, count=8).program(0)
    text = json.dumps(program.to_json())
    again = from_json(generate(sketch.dag, DEVICE), json.loads(text))
    assert again == program
    assert hash(again) == hash(program)
    assert str(again) == str(program)


@given(sketches, seeds)
def test_programs_are_equal_when_all_their_values_are(sketch: Sketch, seed: int) -> None:
    programs = all_programs(drawn(sketch, seed))
    for program in programs:
        (same,) = [other for other in programs if other == program]
        assert same.values == program.values
    assert len({hash(program) for program in programs}) == len(programs)
    assert len({str(program) for program in programs}) == len(programs)


@given(st.sampled_from(TILED_SKETCHES), st.data())
def test_factors_that_do_not_cover_are_refused(sketch: Sketch, data: st.DataObject) -> None:
    program = middling(sketch)
    split = data.draw(st.sampled_from([v for v in sketch.variables if isinstance(v, Split)]))
    where = sketch.columns[split.key]
    values = list(program.values)
    values[data.draw(st.integers(where.start, where.stop - 1))] *= data.draw(
        st.sampled_from([0, -1, 64, 1000])
    )
    with pytest.raises(ValueError, match=f"must multiply to {split.extent}"):
        Program(sketch, tuple(values))


def test_negative_factors_are_refused_even_when_they_multiply_to_the_extent() -> None:
    sketch = sketch_of(dags.matmul(), "tile matmul SSRSRS")
    with pytest.raises(ValueError, match="must multiply to 32"):
        program_of(sketch, matmul={"i": (-4, -8, 1, 1)})


@pytest.mark.parametrize(
    ("i", "j", "fits"),
    [
        ((19, 1, 1, 1), (101, 1, 1, 1), True),
        ((1, 5, 1, 4), (1, 1, 7, 16), True),
        ((5, 1, 1, 4), (1, 1, 4, 32), True),
        ((1, 6, 1, 4), (1, 1, 7, 16), False),
        ((1, 5, 1, 4), (1, 7, 1, 16), False),
        ((1, 5, 1, 4), (1, 1, 1, 128), False),
    ],
)
def test_partial_tiles_fit_where_they_are_peeled(i: tuple[int, ...], j: tuple[int, ...], fits: bool) -> None:
    sketch = sketch_of(dags.matmul(19, 101, 7), "tile matmul SSRSRS")
    if fits:
        assert program_of(sketch, matmul={"i": i, "j": j}).factors("matmul", 1) == j
    else:
        with pytest.raises(ValueError, match="must multiply to"):
            program_of(sketch, matmul={"i": i, "j": j})


@given(st.sampled_from(CHOOSING_SKETCHES), st.data())
def test_an_option_that_does_not_exist_is_refused(sketch: Sketch, data: st.DataObject) -> None:
    choice = data.draw(st.sampled_from([v for v in sketch.variables if isinstance(v, Choice)]))
    values = list(middling(sketch).values)
    values[sketch.columns[choice.key].start] = data.draw(st.sampled_from([-1, len(choice.options)]))
    with pytest.raises(ValueError, match=f"{choice.kind} of {choice.node} has {len(choice.options)} options"):
        Program(sketch, tuple(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sketch": "tile something else"}, "no such sketch: 'tile something else'"),
        ({"sketch": None}, "no such sketch: None"),
        ({"values": []}, "the sketch has 13 columns, not 0"),
        ({"values": ["2"] * 13}, "values are integers"),
        ({"values": [2.0] * 13}, "values are integers"),
        ({"values": [7] * 13}, "must multiply to"),
        ({"values": 3}, "values are integers"),
        ({"values": None}, "values are integers"),
    ],
)
def test_a_stored_program_that_no_longer_fits_is_refused(change: dict[str, object], message: str) -> None:
    sketch = generate(dags.matmul(), DEVICE)[0]
    with pytest.raises(ValueError, match=message):
        from_json([sketch], middling(sketch).to_json() | change)


def test_axes_of_extent_one_have_factors_of_one() -> None:
    program = middling(generate(dags.conv2d(), DEVICE)[0])
    assert program.factors("conv", 0) == (1, 1, 1, 1)
    assert gather([program]).factors("conv", 0).tolist() == [[1, 1, 1, 1]]


def test_a_choice_that_the_sketch_lacks_is_refused() -> None:
    program = middling(generate(dags.matmul(), DEVICE)[0])
    assert program.choice("matmul", "unroll") == 16
    with pytest.raises(KeyError):
        program.choice("matmul", "location")


def test_programs_of_different_sketches_are_different() -> None:
    first, second = generate(dags.matmul(), DEVICE)[:2]
    assert middling(first).values == middling(second).values
    assert middling(first) != middling(second)
    with pytest.raises(ValueError, match="programs of one sketch"):
        gather([middling(first), middling(second)])


@given(sketches, seeds)
def test_gathered_programs_come_back(sketch: Sketch, seed: int) -> None:
    programs = all_programs(drawn(sketch, seed, count=8))
    population = gather(programs)
    assert all_programs(population) == programs
    assert all_programs(population.take(np.array([0]))) == programs[:1]


@given(sketches, seeds, st.lists(st.integers(0, 7), max_size=20))
def test_distinct_keeps_the_first_of_each(sketch: Sketch, seed: int, picks: list[int]) -> None:
    some = drawn(sketch, seed, count=8)
    repeated = some.take(np.array([pick % len(some) for pick in picks], dtype=np.int64))
    rows = repeated.distinct_rows().tolist()
    programs = all_programs(repeated)
    assert sorted(rows) == sorted({programs.index(program) for program in programs})
    values = repeated.distinct().values.tolist()
    assert values == sorted(values)


@given(
    arrays(
        np.int64,
        st.tuples(st.integers(0, 6), st.integers(1, 8)),
        elements=st.sampled_from([0, 1, 2**31, 2**62]),
    )
)
def test_rows_are_ordered_by_their_columns_in_turn(values: Ints) -> None:
    """Also rows whose values together have more bits than a key."""
    order = np.lexsort(sort_keys(values)[::-1])
    assert values[order].tolist() == sorted(values.tolist())


def test_without_variables_there_is_one_distinct_program() -> None:
    (sketch,) = generate(dags.scalar(), DEVICE)
    assert len(Population(sketch, np.zeros((5, 0), dtype=np.int64)).distinct()) == 1
    assert len(Population(sketch, np.zeros((0, 0), dtype=np.int64)).distinct()) == 0
