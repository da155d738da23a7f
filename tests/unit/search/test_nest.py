"""The arithmetic of nests agrees with executed loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.dag import AxisKind, Buffer, BufferAccess, BufferRole, Dag
from search.programs.nest import Nest, footprint_bytes, region, vector_instructions
from search.programs.program import Population, Program, gather
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage
from tests.unit.search.builders import access, dag, node
from tests.unit.search.dags import DEVICE, grouped, matmul, max_pool
from tests.unit.search.programs import all_programs, drawn, program_of, seeds, sketch_of

Position = tuple[int, ...]


def _strided() -> Dag:
    """A convolution along one dimension, stride 2."""
    return dag(
        {"data": (14, 2), "weight": (3, 2, 4)},
        [
            node(
                "conv",
                {"x": 6, "f": 4},
                ["data[2*x + r, c]", "weight[r, c, f]"],
                reduction={"r": 3, "c": 2},
            )
        ],
    )


def _pooling() -> Dag:
    return dag(
        {"data": (9, 4)},
        [node("pool", {"x": 4, "c": 4}, ["data[2*x + r, c]"], reduction={"r": 3})],
    )


GRAPHS = (
    matmul(4, 6, 4),
    matmul(19, 2, 2),  # rows with partial tiles
    _strided(),
    _pooling(),
    grouped(2, 8, 2),
)
SMALL = [sketch for graph in GRAPHS for sketch in generate(graph, DEVICE) if sketch.tiled]

small_sketches = st.sampled_from(SMALL)


class _Loops:
    """The loops of one program: (level, axis, trips), outermost first."""

    def __init__(self, program: Program, stage: Stage) -> None:
        self.node = program.sketch.dag.node[stage.node]
        self.loops: list[tuple[int, int, int]] = []
        seen = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
        for level, letter in enumerate(stage.structure):
            kind = AxisKind(letter)
            for number, axis in enumerate(self.node.axes):
                if axis.kind is kind:
                    self.loops.append((level, number, program.factors(stage.node, number)[seen[kind]]))
            seen[kind] += 1

    def run(self, levels: range) -> Iterator[Position]:
        """Yield the positions of all axes in each iteration of some levels' loops; other loops stay at
        zero."""
        trips = [range(extent) if level in levels else range(1) for level, _, extent in self.loops]
        for counters in itertools.product(*trips):
            position = [0] * len(self.node.axes)
            for (_, axis, extent), counter in zip(self.loops, counters, strict=True):
                position[axis] = position[axis] * extent + counter
            yield tuple(position)

    def exists(self, position: Position) -> bool:
        """Return whether a position is inside the extents, which a partial last tile exceeds."""
        return all(at < axis.extent for at, axis in zip(position, self.node.axes, strict=True))


def _element(read: BufferAccess, position: Position) -> Position:
    return tuple(
        index.offset + sum(c * (position[axis] // divisor) for axis, c, divisor in index.terms)
        for index in read.indices
    )


def _cases(sketch: Sketch, seed: int) -> Iterator[tuple[Nest, int, _Loops]]:
    population = drawn(sketch, seed, count=3)
    (stage,) = sketch.tiled
    nest = Nest.of(population, stage)
    for row, program in enumerate(all_programs(population)):
        yield nest, row, _Loops(program, stage)


@given(small_sketches, seeds)
def test_the_loops_cover_every_iteration_once(sketch: Sketch, seed: int) -> None:
    for nest, _, loops in _cases(sketch, seed):
        positions = [position for position in loops.run(range(nest.depth)) if loops.exists(position)]
        assert len(positions) == len(set(positions)) == loops.node.iterations


@given(small_sketches, seeds)
def test_trips_are_the_iterations_of_a_level(sketch: Sketch, seed: int) -> None:
    for nest, row, loops in _cases(sketch, seed):
        for level in range(nest.depth):
            assert nest.trips(level)[row] == len(list(loops.run(range(level, level + 1))))


@given(small_sketches, seeds)
def test_inside_equals_the_elements_the_inner_loops_cover(sketch: Sketch, seed: int) -> None:
    for nest, row, loops in _cases(sketch, seed):
        for boundary in range(nest.depth + 1):
            positions = list(loops.run(range(boundary, nest.depth)))
            covered = [
                len({position[axis] for position in positions}) for axis in range(len(loops.node.axes))
            ]
            assert nest.inside[boundary, :, row].tolist() == covered


@given(small_sketches, seeds)
def test_the_region_is_the_box_around_the_elements_touched(sketch: Sketch, seed: int) -> None:
    for nest, row, loops in _cases(sketch, seed):
        for read in (*loops.node.reads, loops.node.write):
            buffer = sketch.dag.buffer[read.buffer]
            for boundary in range(nest.depth + 1):
                inside = loops.run(range(boundary, nest.depth))
                touched = {_element(read, position) for position in inside if loops.exists(position)}
                box = [max(dim) - min(dim) + 1 for dim in zip(*touched, strict=True)]
                found = region(read, nest.inside[boundary], buffer.shape)
                assert [int(extent[row]) for extent in found] == box
                lines = math.prod(box[:-1]) * math.ceil(box[-1] * buffer.item_bytes / 16)
                assert footprint_bytes(read, nest.inside, buffer, 16)[boundary, row] == lines * 16


@given(small_sketches, seeds)
def test_loops_one_by_one_cover_and_visit_the_same(sketch: Sketch, seed: int) -> None:
    """Just outside each loop: what the loops inside cover, and how often the region of an access changes."""
    for nest, row, _ in _cases(sketch, seed):
        loops = nest.by_loop()
        trips = loops.extents[:, row].astype(int).tolist()
        for boundary in range(len(trips) + 1):
            covered = [1] * loops.num_axes
            for axis, extent in zip(loops.axes[boundary:], trips[boundary:], strict=True):
                covered[axis] *= extent
            assert loops.inside[boundary, :, row].tolist() == covered
            for each in (*nest.node.reads, nest.node.write):
                used = [loop for loop in range(boundary) if loops.axes[loop] in each.axes]
                outside = itertools.product(*map(range, trips[:boundary]))
                places = [tuple(counters[loop] for loop in used) for counters in outside]
                assert loops.visits(each)[boundary, row] == sum(1 for _ in itertools.groupby(places))


def test_a_matrix_product_has_the_extents_computed_by_hand() -> None:
    """i = 2 x 1 x 2 x 1, j = 1 x 3 x 1 x 2, k = 2 x 2."""
    sketch = sketch_of(matmul(4, 6, 4), "tile matmul SSRSRS")
    program = program_of(sketch, matmul={"i": (2, 1, 2, 1), "j": (1, 3, 1, 2), "k": (2, 2)})
    nest = Nest.of(gather([program]), sketch.tiled[0])
    a, b = nest.node.reads
    assert nest.inside[:, :, 0].tolist() == [
        [4, 6, 4],
        [2, 6, 4],
        [2, 2, 4],
        [2, 2, 2],
        [1, 2, 2],
        [1, 2, 1],
        [1, 1, 1],
    ]
    # Column by column a is the same: its rows are visited again only where k moves inside.
    loops = nest.by_loop()
    assert loops.axes == [0, 1, 0, 1, 2, 0, 1, 2, 0, 1]
    assert loops.visits(a)[:, 0].tolist() == [1, 2, 2, 2, 2, 12, 24, 24, 48, 48, 48]
    assert loops.visits(b)[:, 0].tolist() == [1, 1, 1, 1, 6, 12, 12, 12, 48, 48, 96]


def test_data_dependent_accesses_touch_the_whole_dimension() -> None:
    read = access("table[?i, j]", ["i", "j"])
    inner = np.array([[2, 3], [5, 7]])
    assert [dim.tolist() for dim in region(read, inner, (50, 16))] == [[50, 50], [5, 7]]


def test_a_region_never_exceeds_its_buffer() -> None:
    read = access("data[3*i + k]", ["i", "k"])
    assert region(read, np.array([[4], [9]]), (12,))[0].tolist() == [12]


def test_a_scalar_takes_one_line() -> None:
    buffer = Buffer("total", (), "float32", BufferRole.INTERMEDIATE)
    assert (
        footprint_bytes(BufferAccess("total", ()), np.ones((2, 3), dtype=np.int64), buffer, 64).tolist()
        == [64.0] * 3
    )


def _instructions(width: int, lanes: int) -> int:
    """Count the longest vectors that fit into the rest of a row, until nothing is left."""
    count = 0
    while width:
        while lanes > width:
            lanes //= 2
        width -= lanes
        count += 1
    return count


@given(st.integers(1, 200), st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_a_row_takes_full_vectors_and_powers_of_two(width: int, lanes: int) -> None:
    assert vector_instructions(np.array([width]), lanes).tolist() == [_instructions(width, lanes)]


@pytest.mark.parametrize(("width", "count"), [(1, 1), (16, 1), (32, 2), (48, 3), (24, 2), (7, 3), (31, 5)])
def test_a_row_takes_the_listed_number_of_instructions(width: int, count: int) -> None:
    assert vector_instructions(np.array([width]), 16).tolist() == [count]


def test_many_rows_are_counted_at_once() -> None:
    assert vector_instructions(np.array([[1, 16], [17, 15]]), 16).tolist() == [[1, 1], [2, 4]]


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 11), st.integers(1, 3))
def test_the_quotients_within_a_tile_are_counted(
    divisor: int, tile: int, number: int, coefficient: int
) -> None:
    """The count is exact for tiles that line up with the divisor, and otherwise at most one too small."""
    read = access(f"data[{coefficient}*f//{divisor}]", ["f"])
    (touched,) = region(read, np.array([[tile]]), (10_000,))
    quotients = {f // divisor for f in range(number * tile, (number + 1) * tile)}
    box = coefficient * (max(quotients) - min(quotients)) + 1
    if tile % divisor == 0 or divisor % tile == 0:
        assert touched.tolist() == [box]
    else:
        assert box - coefficient <= int(touched[0]) <= box + coefficient


def test_tiles_of_a_group_read_the_channels_of_that_group() -> None:
    sketch = sketch_of(grouped(2, 8, 2), "tile grouped SSRSRS")
    for f, channels in [((1, 1, 1, 8), 8), ((1, 1, 2, 4), 4), ((1, 1, 4, 2), 4), ((2, 1, 4, 1), 4)]:
        shape = {"y": (2, 1, 1, 1), "x": (2, 1, 1, 1), "f": f, "c": (1, 4)}
        nest = Nest.of(gather([program_of(sketch, grouped=shape)]), sketch.tiled[0])
        data = nest.node.reads[0]
        # Inside the innermost reduction level: its channels for the features of the register tile.
        assert region(data, nest.inside[4], (2, 2, 8))[2].tolist() == [channels]


def test_the_vector_axis_is_contiguous_in_the_result() -> None:
    assert matmul().nodes[0].vector_axis == 1
    assert node("total", {}, ["data[k]"], reduction={"k": 4}).vector_axis is None


def test_a_population_keeps_its_programs_apart() -> None:
    sketch = sketch_of(max_pool(), "nest pad; tile pool SRS")
    (stage,) = sketch.tiled
    together = drawn(sketch, 0, count=16)
    nest = Nest.of(together, stage)
    for row in range(len(together)):
        alone = Nest.of(Population(sketch, together.values[row : row + 1]), stage)
        assert np.array_equal(nest.extents[:, :, row], alone.extents[:, :, 0])
