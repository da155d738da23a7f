from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from search.dag import Dag, Node
from search.sketches.predicates import elementwise_consumer, is_strictly_inlineable, is_tileable, needs_tiling
from tests.unit.search import dags
from tests.unit.search.builders import access, dag, node


def _rows(*reads: str, **facts: Any) -> Node:
    return node("rows", {"i": 8, "j": 4}, list(reads), **facts)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (_rows("a[i, j]"), True),
        (_rows("a[i, j]", "b[0, j]"), True),
        (_rows("a[i - 1, j + 2]"), True),
        (_rows("a[j]"), True),
        (_rows(), True),
        (_rows("a[j, i]"), False),
        (_rows("a[i, i]"), False),
        (_rows("a[2*i, j]"), False),
        (_rows("a[i + j]"), False),
        (_rows("a[?i]"), True),
        (_rows("a[?i, j]"), False),
        (_rows("a[i, j]", has_branch=True), False),
        (_rows("a[i//2, j]"), False),
        (_rows("a[i, j]", is_expensive=True), False),
        (_rows(has_branch=True), True),
        (_rows(is_expensive=True), False),
        (replace(_rows("a[i, j]"), extra_writes=(access("other[i, j]", ["i", "j"]),)), False),
        (node("sum", {"i": 8}, ["a[i, k]"], reduction={"k": 4}), False),
    ],
)
def test_inlineable_nodes_read_in_order_and_cost_little(subject: Node, expected: bool) -> None:
    assert is_strictly_inlineable(subject) is expected


@pytest.mark.parametrize(
    ("make", "name", "expected"),
    [
        (dags.matmul, "matmul", True),
        (dags.conv2d, "conv", True),
        (dags.conv2d, "add", False),
        (dags.depthwise, "depthwise", True),
        (dags.max_pool, "pool", False),
        (dags.softmax, "sum", False),
        (dags.scale_shift, "affine", False),
        (dags.total, "total", False),
    ],
)
def test_tiles_are_for_reductions_that_read_data_again(
    make: Callable[[], Dag], name: str, expected: bool
) -> None:
    assert needs_tiling(make().node[name]) is expected


def test_an_axis_of_extent_one_reads_nothing_again() -> None:
    column = node("column", {"i": 8, "j": 1}, ["a[i, k]"], reduction={"k": 4})
    assert not needs_tiling(column)


def test_data_dependent_reads_have_no_tiles() -> None:
    gathered = node("gathered", {"i": 8, "j": 4}, ["a[i, k]", "b[?k, j]"], reduction={"k": 4})
    assert not needs_tiling(gathered)


def test_tiles_need_spatial_and_reduction_loops() -> None:
    assert is_tileable(dags.matmul().nodes[0])
    assert not is_tileable(dags.total().nodes[0])
    (product,) = dags.matmul().nodes
    assert not is_tileable(replace(product, extra_writes=(product.write,)))
    assert not is_tileable(dags.transpose().nodes[0])


def test_the_epilogue_is_found_through_inlined_nodes() -> None:
    graph = dags.conv2d()
    conv, add, relu = (graph.node[name] for name in ("conv", "add", "relu"))
    assert elementwise_consumer(graph, conv, {"add"}) is relu
    assert elementwise_consumer(graph, conv, set()) is add
    assert elementwise_consumer(graph, relu, set()) is None


def _after_sum(*readers: Node) -> Dag:
    first = node("sum", {"i": 8, "j": 4}, ["a[i, j, k]"], reduction={"k": 4})
    return dag({"a": (8, 4, 4), "b": (8, 4)}, [first, *readers])


@pytest.mark.parametrize(
    "readers",
    [
        [node("shifted", {"i": 8, "j": 4}, ["sum[i, 0]"])],
        [node("turned", {"i": 8, "j": 4}, ["sum[j, i]"])],
        [node("wider", {"i": 8, "j": 4, "l": 2}, ["sum[i, j]"])],
        [node("again", {"i": 8, "j": 4}, ["sum[i, j]", "sum[i, 3]"])],
        [node("reduced", {"i": 8, "j": 4}, ["sum[i, j]"], reduction={"k": 2})],
        [
            node("left", {"i": 8, "j": 4}, ["sum[i, j]"]),
            node("right", {"i": 8, "j": 4}, ["sum[i, j]", "left[i, j]"]),
        ],
    ],
)
def test_a_reader_elsewhere_or_of_another_shape_is_no_epilogue(readers: list[Node]) -> None:
    graph = _after_sum(*readers)
    assert elementwise_consumer(graph, graph.nodes[0], set()) is None


def test_a_node_that_reads_a_value_twice_through_inlined_nodes_is_its_epilogue() -> None:
    shape = {"i": 8, "j": 4}
    graph = _after_sum(
        node("added", shape, ["sum[i, j]", "b[i, j]"]),
        node("error", shape, ["added[i, j]"], is_expensive=True),
        node("gelu", shape, ["added[i, j]", "error[i, j]"]),
    )
    product, added, _, gelu = graph.nodes
    assert elementwise_consumer(graph, product, {"added", "error"}) is gelu
    assert elementwise_consumer(graph, product, {"error"}) is added
    assert elementwise_consumer(graph, product, {"added"}) is None, "two nodes read it"


def test_an_axis_of_extent_one_may_be_read_as_zero() -> None:
    first = node("sum", {"n": 1, "j": 4}, ["a[n, j, k]"], reduction={"k": 4})
    reader = node("relu", {"n": 1, "j": 4}, ["sum[0, j]"])
    graph = dag({"a": (1, 4, 4)}, [first, reader])
    assert elementwise_consumer(graph, first, set()) is reader
