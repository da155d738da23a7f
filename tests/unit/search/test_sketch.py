"""The variables of a sketch, their columns, and the ways to read operands."""

from __future__ import annotations

from collections import Counter

import pytest

from search.dag import Node
from search.rules.space import generate
from search.sketches.factors import Tail
from search.sketches.sketch import Sketch
from search.sketches.variables import VECTOR_LANES, Choice, Split, vector_loops
from search.stages.cpu import Unrolled, extent_in_block
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DAGS, DEVICE
from tests.unit.search.programs import OPEN_SKETCHES, sketch_of

names = pytest.mark.parametrize("name", OPEN_SKETCHES)


def _options(sketch: Sketch, name: str, kind: str) -> tuple[int | str, ...]:
    found = sketch.choice(name, kind)
    return found.options if found else ()


@pytest.mark.parametrize("name", DAGS)
def test_sketches_are_distinct_and_the_same_on_every_call(name: str) -> None:
    first, again = ([sketch.key for sketch in generate(DAGS[name](), DEVICE)] for _ in range(2))
    assert first == again
    assert len(first) == len(set(first)) > 0


@pytest.mark.parametrize("name", DAGS)
def test_every_node_has_one_stage_in_the_order_of_the_dag(name: str) -> None:
    graph = DAGS[name]()
    for sketch in generate(graph, DEVICE):
        assert [stage.node for stage in sketch.stages] == [n.name for n in graph.nodes]


@names
def test_every_axis_of_a_node_with_levels_is_split_once(name: str) -> None:
    """Axes over small constant matrices are unrolled instead; a transform's rows of a block stay whole."""
    for sketch in OPEN_SKETCHES[name]:
        split = Counter((v.node, v.axis, v.extent) for v in sketch.variables if isinstance(v, Split))
        expected = {
            (stage.node, position, extent)
            for stage in sketch.stages
            if stage.structure
            for node in [sketch.dag.node[stage.node]]
            for position in range(len(node.axes))
            if (extent := extent_in_block(node, stage, position)) > 1
            and position not in node.constant_axes
            and not (isinstance(stage, Unrolled) and position in stage.rows)
        }
        assert split == Counter(expected)


@names
def test_columns_are_the_variables_without_gaps_or_overlaps(name: str) -> None:
    for sketch in OPEN_SKETCHES[name]:
        covered = [column for where in sketch.columns.values() for column in range(where.start, where.stop)]
        assert covered == list(range(sketch.num_columns))
        assert list(sketch.columns) == [variable.key for variable in sketch.variables]


@names
def test_choices_are_between_different_options(name: str) -> None:
    for sketch in OPEN_SKETCHES[name]:
        for variable in sketch.variables:
            if isinstance(variable, Choice):
                assert len(variable.options) == len(set(variable.options)) > 0


def test_partial_tiles_are_for_rows_and_peeled_vectors() -> None:
    tiled = sketch_of(dags.matmul(19, 101, 7), "tile matmul SSRSRS")
    tails = {axis: tiled.variable["matmul", axis].tail for axis in range(3)}  # type: ignore[union-attr]
    assert tails == {0: Tail.ANY, 1: Tail.INNER, 2: Tail.NONE}
    pool = sketch_of(dags.max_pool(), "nest pad; tile pool SRS")
    assert {v.tail for v in pool.variables if isinstance(v, Split)} == {Tail.NONE}


def test_operands_are_read_directly_or_from_copies() -> None:
    tiled = sketch_of(dags.matmul(), "tile matmul SSRSRS")
    assert _options(tiled, "matmul", "read a") == ("direct", "2", "3")
    assert _options(tiled, "matmul", "read b") == ("direct", "2", "3")


def test_constants_are_packed_if_every_element_is_read_at_one_place() -> None:
    product = {"spatial": {"i": 16, "j": 16}, "reduction": {"k": 16}}
    for read, ways in [
        ("b[k, j]", ("direct", "packed")),
        ("b[j, k]", ("direct", "packed")),
        ("b[j + k, j]", ()),
        ("b[k, 0]", ()),
    ]:
        graph = dag(
            {"a": (16, 16), "b": (16, 16)},
            [node("matmul", product["spatial"], ["a[i, k]", read], reduction=product["reduction"])],
            constants=("b",),
        )
        assert _options(sketch_of(graph, "tile matmul SSRSRS"), "matmul", "read b") == ways, read


def test_results_of_movable_nests_are_not_copied() -> None:
    sketch = generate(dags.conv2d(), DEVICE)[0]
    assert _options(sketch, "conv", "read weight")
    assert not _options(sketch, "conv", "read pad")


def test_operands_read_twice_or_at_unknown_places_are_not_copied() -> None:
    graph = dag(
        {"a": (16, 16), "table": (16, 16), "b": (16, 16)},
        [
            node(
                "twice", {"i": 16, "j": 16}, ["a[i, k]", "a[k, j]", "b[k, j]"], reduction={"k": 16}, flops=2.0
            )
        ],
    )
    tiled = sketch_of(graph, "tile twice SSRSRS")
    assert not _options(tiled, "twice", "read a")
    assert _options(tiled, "twice", "read b")


def test_plain_reductions_copy_nothing() -> None:
    sketch = sketch_of(dags.global_pool(), "tile sum SRS; nest average")
    assert {v.kind for v in sketch.variables if isinstance(v, Choice) and v.node == "sum"} == {"unroll"}


@pytest.mark.parametrize(
    ("extent", "lanes"), [(1, (1,)), (3, (1, 4)), (4, (1, 4)), (40, (1, 4, 8, 16, 32, 64)), (7, (1, 4, 8))]
)
def test_vectors_are_less_than_twice_the_row(extent: int, lanes: tuple[int, ...]) -> None:
    graph = dag({"a": (extent,)}, [node("copy", {"i": extent}, ["a[i]"])])
    assert _options(sketch_of(graph, "nest copy"), "copy", "vector") == lanes


def test_loops_of_one_iteration_make_no_difference_in_parallel() -> None:
    (sketch,) = generate(dags.add_relu(), DEVICE)
    assert [axis.extent for axis in dags.add_relu().node["relu"].axes] == [1, 14, 14, 24]
    assert _options(sketch, "relu", "parallel") == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("columns", "lanes"),
    [
        (40, (8, 40)),
        (64, (8, 16, 32, 64)),
        (1000, (8, 40)),
        (20, (2, 4, 5, 10, 20)),
        (7, (7,)),
    ],
)
def test_partial_results_fill_vectors_where_they_can(columns: int, lanes: tuple[int, ...]) -> None:
    sketch = sketch_of(dags.norm(6, columns), "inline square; nest sum rfactor inner; nest root")
    assert _options(sketch, "sum", "lanes") == lanes


@pytest.mark.parametrize(("columns", "lanes"), [(49, (16, 32, 48)), (1009, (16, 32, 48, 64))])
def test_partial_results_of_uneven_rows_are_full_vectors(columns: int, lanes: tuple[int, ...]) -> None:
    sketch = sketch_of(dags.norm(6, columns), "inline square; nest sum rfactor uneven; nest root")
    assert _options(sketch, "sum", "lanes") == lanes


def test_inner_loops_become_one_vector_until_they_are_longer_than_any() -> None:
    narrow = dag({"a": (9, 8, 4, 1, 3)}, [_same_shape("b", (9, 8, 4, 1, 3))])
    (sketch,) = generate(narrow, DEVICE)
    assert vector_loops(narrow.node["b"]) == (4, 2, 1)
    assert _options(sketch, "b", "fused") == (1, 2, 3)
    assert _options(sketch, "b", "vector") == VECTOR_LANES


def test_long_rows_are_vectors_by_themselves() -> None:
    (sketch,) = generate(dag({"a": (9, 64)}, [_same_shape("b", (9, 64))]), DEVICE)
    assert ("b", "fused") not in sketch.variable


def _same_shape(name: str, shape: tuple[int, ...]) -> Node:
    axes = {f"i{number}": extent for number, extent in enumerate(shape)}
    return node(name, axes, [f"a[{', '.join(axes)}]"])


def test_partial_results_of_cores_are_not_the_whole_sum() -> None:
    sketch = sketch_of(dags.norm(6, 20), "inline square; nest sum rfactor outer; nest root")
    assert _options(sketch, "sum", "lanes") == (2, 4, 5, 10)
