from __future__ import annotations

import math

import numpy as np
from hypothesis import given

from search.annotate import (
    MAX_INNERMOST,
    MAX_TILE_INSTRUCTIONS,
    MAX_UNROLLED_INSTRUCTIONS,
    VECTOR_ELEMENTS,
    sample,
    valid,
)
from search.program import Program, gather
from search.sketch import Sketch, Split, generate
from tests.unit.search import dags
from tests.unit.search.programs import all_programs, drawn, middling, seeds, sketches


@given(sketches, seeds)
def test_samples_are_distinct_valid_programs(sketch: Sketch, seed: int) -> None:
    programs = all_programs(drawn(sketch, seed))
    assert len(programs) == len(set(programs))
    assert valid(gather(programs)).all()


@given(sketches, seeds)
def test_samples_depend_on_nothing_but_the_seed(sketch: Sketch, seed: int) -> None:
    assert np.array_equal(drawn(sketch, seed).values, drawn(sketch, seed).values)


@given(sketches, seeds)
def test_what_is_unrolled_stays_within_the_limits(sketch: Sketch, seed: int) -> None:
    for program in all_programs(drawn(sketch, seed, count=8)):
        for stage in sketch.tiled:
            assert _unrolled_instructions(program, stage.node) <= MAX_UNROLLED_INSTRUCTIONS


def _unrolled_instructions(program: Program, name: str) -> int:
    """Counted loop by loop: vector instructions of the register tile, times the unrolled reduction steps."""
    node = program.sketch.dag.node[name]
    tile = [program.factors(name, axis)[-1] for axis in node.spatial]
    assert max(tile) <= MAX_INNERMOST
    vector = 1
    while tile[-1] % (2 * vector) == 0:
        vector *= 2
    rows = math.prod(tile) // vector
    instructions = math.prod(tile) // min(vector, VECTOR_ELEMENTS)
    assert instructions <= MAX_TILE_INSTRUCTIONS
    steps = math.prod(program.factors(name, axis)[-1] for axis in node.reduction)
    unrolled = max(1, min(steps, int(program.choice(name, "unroll")) // rows))
    return instructions * unrolled


def test_sampling_reaches_every_program_of_a_small_space() -> None:
    sketch = generate(dags.matmul(n=2, m=3, k=2))[0]
    population = sample(sketch, 20_000, np.random.default_rng(0))
    size = math.prod(
        4 if v.node == "matmul" and not isinstance(v, Split) else v.parts for v in sketch.variables
    )
    assert len(population) == size == 4 * 4 * 2 * 4


def test_a_tile_that_is_too_large_is_not_valid() -> None:
    sketch = generate(dags.matmul(n=64, m=64, k=64))[0]
    program = middling(sketch)
    values = np.array([program.values])
    values[0, sketch.columns["matmul", 0]] = [1, 1, 1, 64]
    values[0, sketch.columns["matmul", 1]] = [1, 1, 1, 64]
    assert not valid(type(gather([program]))(sketch, values)).any()


def test_a_sketch_without_variables_has_one_program() -> None:
    (sketch,) = generate(dags.add_relu())
    assert len(sample(sketch, 10, np.random.default_rng(0))) == 1
