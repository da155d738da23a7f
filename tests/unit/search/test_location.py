"""Possible compute locations of nests."""

from __future__ import annotations

from typing import Any

import pytest

from search.dag import Dag, Node
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import sketch_of

Location = tuple[str | None, tuple[int | str, ...]]


def _locations(graph: Dag, key: str) -> dict[str, Location]:
    """Return the consumer of every nest and the options of its location."""
    sketch = sketch_of(graph, key)
    found: dict[str, Location] = {}
    for stage in sketch.nests:
        compute_at = sketch.compute_at.get(stage.node)
        location = sketch.choice(stage.node, "location")
        found[stage.node] = (compute_at.name if compute_at else None, location.options if location else ())
    return found


def test_all_of_a_softmax_may_be_computed_row_by_row() -> None:
    assert _locations(dags.softmax(), "nest max; nest exp; nest sum; nest divide") == {
        "max": ("divide", ("root", "1")),
        "exp": ("divide", ("inline", "root", "1")),
        "sum": ("divide", ("root", "1")),
        "divide": (None, ()),
    }


def test_partial_results_for_all_cores_are_computed_before() -> None:
    key = "nest max rfactor outer; nest exp; nest sum rfactor inner; nest divide"
    found = _locations(dags.softmax(), key)
    assert found["max"] == (None, ())
    assert found["exp"] == ("divide", ("inline", "root", "1"))
    assert found["sum"] == ("divide", ("root", "1"))


def test_uneven_partial_results_have_a_nest_of_their_own() -> None:
    key = "nest max rfactor uneven; nest exp; nest sum rfactor uneven; nest divide"
    found = _locations(dags.softmax(16, 67), key)
    assert found["max"] == (None, ())
    assert found["exp"] == (None, ("inline", "root"))
    assert found["sum"] == (None, ())


def test_both_passes_of_a_layer_norm_join_its_row() -> None:
    assert _locations(dags.layer_norm(), "nest sum; inline mean; nest variance; nest norm") == {
        "sum": ("norm", ("root", "1")),
        "variance": ("norm", ("root", "1")),
        "norm": (None, ()),
    }


def test_a_nest_of_several_results_joins_its_reader_whole() -> None:
    assert _locations(dags.layer_norm_one_pass(), "nest sums; nest norm")["sums"] == ("norm", ("root", "1"))


def test_the_operands_of_a_product_are_computed_outside() -> None:
    """Tiles read the exponentials and their sum again and again."""
    softmax = "inline scaled; nest max; nest exp; nest sum; inline weights"
    assert _locations(dags.attention(), f"tile scores SSRSRS; {softmax}; tile attention SSRSRS") == {
        "max": ("exp", ("root", "1", "2")),
        "exp": (None, ("inline", "root")),
        "sum": (None, ()),
    }


def test_padding_may_move_down_to_the_outermost_reduction_level() -> None:
    for name, key, depths in [
        ("conv2d", "nest pad; tile conv SSRSRS; inline add; nest relu", ("1", "2", "3")),
        ("max_pool", "nest pad; tile pool SRS", ("1",)),
    ]:
        (compute_at, options) = _locations(dags.DAGS[name](), key)["pad"]
        assert compute_at in ("conv", "pool")
        assert options == ("inline", "root", *depths)


def test_a_vector_axis_is_not_divided_between_nests() -> None:
    """The consumer's only axis is vectorized, so the sums are computed before it."""
    assert _locations(dags.norm(), "inline square; nest sum; nest root")["sum"] == ("root", ())


def _square(name: str, reads: list[str], **facts: Any) -> Node:
    return node(name, {"i": 16, "j": 16}, reads, **facts)


def test_a_nest_read_by_two_products_does_not_move() -> None:
    graph = dag(
        {"data": (16, 16), "left": (16, 16), "right": (16, 16)},
        [
            _square("pad", ["data[i, j]"], has_branch=True),
            _square("first", ["pad[i, k]", "left[k, j]"], reduction={"k": 16}),
            _square("second", ["pad[i, k]", "right[k, j]"], reduction={"k": 16}),
            _square("both", ["first[i, j]", "second[i, j]"]),
        ],
    )
    for sketch in generate(graph, DEVICE):
        assert "pad" not in sketch.compute_at
        location = sketch.choice("pad", "location")
        assert location is not None
        assert location.options == ("inline", "root")


def test_a_nest_finds_its_reader_through_inlined_ones() -> None:
    graph = dag(
        {"data": (16, 16), "weight": (16, 16)},
        [
            node("pad", {"i": 16, "k": 16}, ["data[i, k]"], has_branch=True),
            node("scale", {"i": 16, "k": 16}, ["pad[i, k]"], flops=1.0),
            _square("matmul", ["scale[i, k]", "weight[k, j]"], reduction={"k": 16}),
        ],
    )
    sketch = generate(graph, DEVICE)[0]
    assert sketch.stage["scale"].kind is StageKind.INLINE
    assert sketch.compute_at["pad"].name == "matmul"


def test_a_reduction_does_not_move_into_a_tile() -> None:
    graph = dag(
        {"data": (16, 16), "left": (16, 16), "right": (16, 16)},
        [
            node("total", {"i": 16}, ["data[i, k]"], reduction={"k": 16}),
            _square("matmul", ["left[i, k]", "right[k, j]", "total[i]"], reduction={"k": 16}),
        ],
    )
    for sketch in generate(graph, DEVICE):
        assert "total" not in sketch.compute_at


@pytest.mark.parametrize(
    ("read", "depths"),
    [
        pytest.param("heavy[i, j, k]", ("1", "2"), id="the same axes"),
        pytest.param("heavy[j, i, k]", ("1", "2"), id="in another order"),
        pytest.param("heavy[i, 3, k]", ("1",), id="a constant"),
        pytest.param("heavy[i, j + 1, k]", ("1",), id="shifted"),
        pytest.param("heavy[2*i, j, k]", (), id="every other"),
        pytest.param("heavy[i//2, j, k]", (), id="each one twice"),
        pytest.param("heavy[?i, j, k]", (), id="wherever"),
        pytest.param("heavy[k, j, i]", ("1", "2"), id="transposed"),
    ],
)
def test_a_nest_joins_the_outer_axes_that_it_shares(read: str, depths: tuple[str, ...]) -> None:
    box = {"i": 8, "j": 8, "k": 8}
    graph = dag(
        {"data": (32, 32, 8)},
        [
            node("heavy", box, ["data[i, j, k]"], is_expensive=True),
            node("reader", box, [read], is_expensive=True),
        ],
    )
    assert _locations(graph, "nest heavy; nest reader")["heavy"][1] == ("inline", "root", *depths)


def test_two_reads_share_their_common_axes() -> None:
    box = {"i": 8, "j": 8, "k": 8}
    graph = dag(
        {"data": (8, 8, 8)},
        [
            node("heavy", box, ["data[i, j, k]"], is_expensive=True),
            node("reader", box, ["heavy[i, j, k]", "heavy[i, k, j]"], is_expensive=True),
        ],
    )
    assert _locations(graph, "nest heavy; nest reader")["heavy"][1] == ("inline", "root", "1")


def test_loops_of_one_iteration_are_no_locations() -> None:
    shape = {"n": 1, "i": 8, "j": 8}
    graph = dag(
        {"data": (1, 8, 8)},
        [
            node("heavy", shape, ["data[n, i, j]"], is_expensive=True),
            node("reader", shape, ["heavy[0, i, j]"], is_expensive=True),
        ],
    )
    assert _locations(graph, "nest heavy; nest reader")["heavy"][1] == ("inline", "root", "2")


def test_outputs_do_not_move() -> None:
    for name, make in dags.DAGS.items():
        for sketch in generate(make(), DEVICE):
            assert make().name not in sketch.compute_at, name
