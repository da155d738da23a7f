"""Random programs: drawing, validity, and values without effect."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given

from search.programs.annotate import keep_valid, sample
from search.programs.code_size import MAX_TILE_INSTRUCTIONS, MAX_UNROLLED_INSTRUCTIONS, VECTOR_BYTES
from search.programs.compute_location import count_gathers, is_inlined, location_depth
from search.programs.program import Population, Program, gather
from search.programs.validity import valid
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from search.sketches.variables import MAX_INNERMOST
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import all_programs, drawn, program_of, seeds, sketch_of, sketches


def _unchecked(sketch: Sketch, seed: int, count: int = 32) -> Population:
    """Draw values that may not be valid together."""
    rng = np.random.default_rng(seed)
    columns = []
    for variable in sketch.variables:
        table = variable.table if hasattr(variable, "table") else np.arange(len(variable.options))[:, None]
        columns.append(table[rng.integers(len(table), size=count)])
    return Population(sketch, np.concatenate(columns, axis=1))


@given(sketches, seeds)
def test_samples_are_distinct_valid_programs(sketch: Sketch, seed: int) -> None:
    programs = all_programs(drawn(sketch, seed))
    assert len(programs) == len(set(programs))
    assert valid(gather(programs)).all()


@given(sketches, seeds)
def test_samples_depend_on_nothing_but_the_seed(sketch: Sketch, seed: int) -> None:
    assert np.array_equal(drawn(sketch, seed).values, drawn(sketch, seed).values)


@given(sketches, seeds)
def test_valid_programs_are_small_and_their_nests_enclose_their_readers(sketch: Sketch, seed: int) -> None:
    population = _unchecked(sketch, seed)
    for program, keep in zip(all_programs(population), valid(population), strict=True):
        small = all(_is_small(program, stage.node) for stage in sketch.tiled)
        encloses = all(_encloses_readers(program, stage.node) for stage in sketch.nests)
        assert not keep or (small and encloses), program
        assert keep or not (small and encloses) or _computes_more(program), program


def _is_small(program: Program, name: str) -> bool:
    """Counted loop by loop: vector instructions of the register tile, times the unrolled reduction steps."""
    node = program.sketch.dag.node[name]
    assert node.vector_axis is not None
    tile = {axis: program.factors(name, axis)[-1] for axis in node.spatial}
    width = tile.get(node.vector_axis, 1)
    rows = math.prod(tile.values()) // width
    instructions = rows * _instructions(width, VECTOR_BYTES // 4)
    steps = math.prod(program.factors(name, axis)[-1] for axis in node.reduction)
    limit = int(program.choice(name, "unroll")) // (rows * _instructions(width, MAX_INNERMOST))
    unrolled = max(1, min(steps, limit))
    return (
        max(tile.values()) <= MAX_INNERMOST
        and instructions <= MAX_TILE_INSTRUCTIONS
        and instructions * unrolled <= MAX_UNROLLED_INSTRUCTIONS
    )


def _computes_more(program: Program) -> bool:
    """Return whether code grows by more than its tiles: by vectorized nests, gathers or inlined functions."""
    stages = program.sketch.stages
    return any(program.sketch.dag.node[s.node].flops > 1 or s.kind is StageKind.NEST for s in stages)


def _instructions(width: int, lanes: int) -> int:
    """The largest power of two that is left, again and again."""
    count = 0
    while width:
        width -= min(lanes, 1 << (width.bit_length() - 1))
        count += 1
    return count


def _encloses_readers(program: Program, name: str) -> bool:
    """Return whether the loops in which a nest is computed enclose all of its readers."""
    depth = _depth(program, name)
    if not depth:
        return True
    compute_at = program.sketch.compute_at[name].name
    if program.location(compute_at) == "inline":
        return False
    return all(
        reader == compute_at
        or (program.sketch.compute_at[reader].name == compute_at and _depth(program, reader) >= depth)
        for reader in _readers(program, name)
    )


def _depth(program: Program, name: str) -> int:
    location = program.location(name)
    return int(location) if location.isdigit() else 0


def _readers(program: Program, name: str) -> Iterator[str]:
    for consumer in program.sketch.dag.consumers(program.sketch.dag.node[name]):
        placed = program.sketch.stage[consumer.name].kind
        if placed is StageKind.INLINE or program.location(consumer.name) == "inline":
            yield from _readers(program, consumer.name)
        else:
            yield consumer.name


def _softmax(max_at: str, exp_at: str, sum_at: str) -> Program:
    sketch = sketch_of(dags.softmax(), "nest max; nest exp; nest sum; nest divide")
    return program_of(sketch, max={"location": max_at}, exp={"location": exp_at}, sum={"location": sum_at})


@pytest.mark.parametrize(
    ("max_at", "exp_at", "sum_at", "expected"),
    [
        ("root", "root", "root", True),
        ("root", "1", "1", True),
        ("1", "1", "1", True),
        ("1", "inline", "1", True),
        ("root", "inline", "root", True),
        ("root", "root", "1", True),
        # The sum would read exponentials that are already overwritten, or not computed yet.
        ("root", "1", "root", False),
        ("1", "1", "root", False),
        # The exponentials are computed by themselves, or within a sum by itself.
        ("1", "root", "1", False),
        ("1", "inline", "root", False),
    ],
)
def test_a_nest_is_inside_no_loops_that_a_reader_is_outside_of(
    max_at: str, exp_at: str, sum_at: str, expected: bool
) -> None:
    assert valid(gather([_softmax(max_at, exp_at, sum_at)])).tolist() == [expected]


def test_a_nest_joins_no_inlined_nest() -> None:
    sketch = generate(dags.attention(), DEVICE)[0]
    for max_at, exp_at, expected in [("2", "root", True), ("root", "inline", True), ("2", "inline", False)]:
        program = program_of(sketch, max={"location": max_at}, exp={"location": exp_at})
        assert valid(gather([program])).tolist() == [expected]


@given(sketches, seeds)
def test_loops_of_moved_nests_have_a_single_value(sketch: Sketch, seed: int) -> None:
    for program in all_programs(drawn(sketch, seed)):
        for stage in sketch.nests:
            location = program.location(stage.node)
            fixed = {"inline": ("vector", "parallel", "unroll"), "root": ()}.get(
                location, ("parallel", "unroll")
            )
            for kind in fixed:
                variable = sketch.choice(stage.node, kind)
                assert variable is None or program.choice(stage.node, kind) == variable.options[0]


@given(sketches, seeds)
def test_values_that_do_not_matter_make_no_other_program(sketch: Sketch, seed: int) -> None:
    """Parallel and unrolled loops of a moved nest, drawn anew, go back to their first values."""
    first = drawn(sketch, seed)
    second = Population(sketch, first.values.copy())
    for stage in sketch.nests:
        moved = is_inlined(first, stage.node) | (location_depth(first, stage.node) > 0)
        for kind in ("parallel", "unroll"):
            variable = sketch.choice(stage.node, kind)
            if variable is not None:
                second.values[moved, sketch.columns[variable.key]] = len(variable.options) - 1
    assert np.array_equal(keep_valid(second).values, first.values)


@given(sketches, seeds)
def test_legal_programs_stay_as_they_are(sketch: Sketch, seed: int) -> None:
    once = keep_valid(_unchecked(sketch, seed))
    assert np.array_equal(keep_valid(once).values, once.values)


def test_sampling_reaches_every_program_of_a_small_space() -> None:
    sketch = sketch_of(dags.matmul(n=2, m=3, k=2), "tile matmul SSRSRS")
    population = sample(sketch, 50_000, np.random.default_rng(0))
    assert len(population) == 4 * 4 * 2 * 4 * 3 * 3


def test_sampling_reaches_every_location_of_a_small_softmax() -> None:
    sketch = sketch_of(dags.softmax(2, 2), "nest max; nest exp; nest sum; nest divide")
    found = {
        tuple(program.location(name) for name in ("max", "exp", "sum"))
        for program in all_programs(sample(sketch, 5000, np.random.default_rng(0)))
    }
    everywhere = {
        (max_at, exp_at, sum_at)
        for max_at in ("root", "1")
        for exp_at in ("inline", "root", "1")
        for sum_at in ("root", "1")
        if valid(gather([_softmax(max_at, exp_at, sum_at)])).all()
    }
    assert found == everywhere


def test_a_tile_that_is_too_large_is_not_valid() -> None:
    sketch = generate(dags.matmul(n=64, m=64, k=64), DEVICE)[0]
    for rows, expected in [(8, True), (16, True), (32, False)]:
        tile = {"i": (64 // rows, 1, 1, rows), "j": (1, 1, 1, 64), "k": (64, 1), "unroll": 0}
        assert valid(gather([program_of(sketch, matmul=tile)])).tolist() == [expected]


@pytest.mark.parametrize(("dtype", "expected"), [("int8", True), ("float32", False), ("float64", False)])
def test_the_size_of_a_nest_depends_on_the_vectors_of_its_type(dtype: str, expected: bool) -> None:
    """64 bytes are one vector, 64 floats are four."""
    scaled = node("scaled", {"i": 1024, "j": 64}, ["data[i, j]"], flops=4)
    graph = dag({"data": (1024, 64)}, [scaled], {"data": dtype, "scaled": dtype})
    program = program_of(sketch_of(graph, "nest scaled"), scaled={"vector": 64, "unroll": 512, "parallel": 0})
    assert valid(gather([program])).tolist() == [expected]


def test_a_nest_has_only_the_steps_of_a_chunk_to_unroll() -> None:
    scaled = node("scaled", {"i": 1024, "j": 64}, ["data[i, j]"], flops=32)
    sketch = sketch_of(dag({"data": (1024, 64)}, [scaled]), "nest scaled")
    for parallel, expected in [(0, False), (1, True)]:
        program = program_of(sketch, scaled={"vector": 64, "unroll": 512, "parallel": parallel})
        assert valid(gather([program])).tolist() == [expected]


@pytest.mark.parametrize(("location", "expected"), [("inline", 1), ("root", 0)])
def test_a_nest_gathers_what_an_inlined_transposition_reads(location: str, expected: int) -> None:
    last = node("last", {"i": 24, "j": 64}, ["data[j, i]"])
    padded = node("padded", {"i": 26, "j": 64}, ["last[i - 1, j]"], has_branch=True)
    sketch = sketch_of(dag({"data": (64, 24)}, [last, padded]), "nest last; nest padded")
    program = program_of(sketch, last={"location": location}, padded={"vector": 64})
    assert count_gathers(gather([program]), sketch.stage["padded"]).tolist() == [expected]


@pytest.mark.parametrize(("vector", "expected"), [(16, True), (64, False)])
def test_a_gather_of_more_lanes_than_a_register_is_seldom_unrolled(vector: int, expected: bool) -> None:
    last = node("last", {"i": 24, "j": 64}, ["data[j, i]"])
    program = program_of(
        sketch_of(dag({"data": (64, 24)}, [last]), "nest last"),
        last={"vector": vector, "unroll": 16, "parallel": 0},
    )
    assert valid(gather([program])).tolist() == [expected]


def test_a_sketch_without_variables_has_one_program() -> None:
    (sketch,) = generate(dags.scalar(), DEVICE)
    assert len(sample(sketch, 10, np.random.default_rng(0))) == 1
