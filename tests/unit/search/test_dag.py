from __future__ import annotations

from dataclasses import replace

import pytest

from search.dag import Axis, AxisKind, Buffer, BufferRole, Dag
from tests.unit.search.builders import access, dag, index, node
from tests.unit.search.dags import add_relu, conv2d, matmul, softmax, take


def test_flops_count_every_iteration_of_every_node() -> None:
    assert matmul(n=4, m=6, k=5).flops == 2 * 4 * 6 * 5
    assert conv2d(size=4, inputs=2, outputs=3).flops == 2 * (4 * 4 * 3) * (3 * 3 * 2) + 2 * (4 * 4 * 3)


def test_producer_and_consumers_follow_the_buffers() -> None:
    graph = softmax()
    maximum, exponent, total, quotient = graph.nodes
    assert graph.consumers(exponent) == (total, quotient)
    assert [graph.producer.get(read.buffer) for read in quotient.reads] == [exponent, total]
    assert graph.producer.get(maximum.reads[0].buffer) is None
    assert graph.consumers(quotient) == ()


def test_a_node_that_reads_an_unwritten_buffer_is_refused() -> None:
    first, second = add_relu().nodes
    with pytest.raises(ValueError, match=r"relu reads \['add'\] before they are written"):
        dag({"a": (1, 14, 14, 24), "b": (1, 14, 14, 24)}, [second, first])


def test_a_buffer_is_written_once() -> None:
    once = node("sum", {"i": 4}, ["a[i]"])
    again = replace(once, name="again")
    with pytest.raises(ValueError, match="again writes sum, which is already written"):
        dag({"a": (4,)}, [once, again])


def test_no_two_nodes_share_a_name() -> None:
    once = node("sum", {"i": 4}, ["a[i]"])
    other = replace(node("other", {"i": 4}, ["a[i]"]), name="sum")
    with pytest.raises(ValueError, match="two nodes are called sum"):
        dag({"a": (4,)}, [once, other])


def test_an_axis_has_a_positive_extent() -> None:
    with pytest.raises(ValueError, match="axis i must have a positive extent, not 0"):
        Axis("i", 0, AxisKind.SPATIAL)


def test_axes_are_told_apart_by_kind() -> None:
    (product,) = matmul(n=4, m=6, k=5).nodes
    assert (product.spatial, product.reduction, product.iterations) == ((0, 1), (2,), 120)


def test_buffers_know_their_bytes_and_roles() -> None:
    graph = take(rows=50, columns=16, count=12)
    assert {b.name: b.num_bytes for b in graph.buffers} == {"table": 3200, "indices": 96, "take": 768}
    assert [b.role for b in graph.buffers] == [BufferRole.INPUT, BufferRole.INPUT, BufferRole.OUTPUT]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i", True),
        ("i - 1", True),
        ("0", True),
        ("2*i", False),
        ("i//2", False),
        ("i + j", False),
        ("?i", False),
    ],
)
def test_a_single_axis_is_an_axis_plus_a_constant(text: str, expected: bool) -> None:
    assert index(text, ["i", "j"]).is_single_axis is expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", 4), ("bfloat16", 2), ("int64", 8), ("int8", 1), ("float8_e4m3fn", 1), ("bool", 1)],
)
def test_every_type_has_a_size(dtype: str, expected: int) -> None:
    buffer = Buffer("data", (2, 3), dtype, BufferRole.INPUT)
    assert (buffer.item_bytes, buffer.num_bytes) == (expected, 6 * expected)


def test_an_access_is_moved_by_the_axes_in_its_indices() -> None:
    assert access("data[i, 4*k//8 + 1, ?j]", ["i", "j", "k", "l"]).axes == {0, 1, 2}


def _argmax() -> Dag:
    position = node("position", {"i": 8}, ["data[i, k]"], reduction={"k": 4}, reducer="other")
    both = replace(position, extra_writes=(access("value[i]", ["i"]),))
    reader = node("double", {"i": 8}, ["value[i]"])
    graph = dag({"data": (8, 4)}, [position])
    buffers = [
        *graph.buffers,
        Buffer("value", (8,), "float32", BufferRole.INTERMEDIATE),
        Buffer("double", (8,), "float32", BufferRole.OUTPUT),
    ]
    return Dag("double", tuple(buffers), (both, reader))


def test_a_node_may_have_several_results() -> None:
    graph = _argmax()
    both, reader = graph.nodes
    assert [write.buffer for write in both.writes] == ["position", "value"]
    assert graph.producer["position"] is graph.producer["value"] is both
    assert graph.consumers(both) == (reader,)


def test_each_of_several_results_is_written_once() -> None:
    graph = _argmax()
    both, _ = graph.nodes
    with pytest.raises(ValueError, match="again writes position, which is already written"):
        Dag("again", graph.buffers, (both, replace(both, name="again")))


def test_the_text_has_every_node_with_its_reads() -> None:
    strided = node(
        "strided",
        {"i": 4, "j": 6},
        ["a[2*i + k - 1, j//3]", "b[?k, -1*i + 3]", "c[2*j//4]", "d[0]", "e[]"],
        reduction={"k": 3},
        has_branch=True,
        is_expensive=True,
    )
    shapes = {"a": (9, 2), "b": (5, 4), "c": (4,), "d": (1,), "e": ()}
    assert str(dag(shapes, [strided], dtypes={"b": "int8"})).splitlines() == [
        "input a: float32[9, 2]",
        "input b: int8[5, 4]",
        "input c: float32[4]",
        "input d: float32[1]",
        "input e: float32[]",
        "output strided: float32[4, 6]",
        "strided(S i=4 j=6, R k=3): strided[i, j] = "
        "sum(a[2*i + k - 1, j//3], b[?(k), -i + 3], c[2*(j//4)], d[0], e[]) branch expensive",
    ]
