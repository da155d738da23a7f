from __future__ import annotations

from collections import Counter

import pytest

from search.dag import Dag
from search.sketch import Placement, Rule, Sketch, Split, Stage, State, Verdict, generate
from tests.unit.search import dags
from tests.unit.search.dags import DAGS, dag, node
from tests.unit.search.programs import OPEN_SKETCHES


def _keys(graph: Dag) -> list[str]:
    return [sketch.key for sketch in generate(graph)]


@pytest.mark.parametrize("name", DAGS)
def test_sketches_are_distinct_and_the_same_on_every_call(name: str) -> None:
    keys = _keys(DAGS[name]())
    assert keys == _keys(DAGS[name]())
    assert keys
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", DAGS)
def test_every_node_has_one_stage_in_the_order_of_the_dag(name: str) -> None:
    graph = DAGS[name]()
    for sketch in generate(graph):
        assert [stage.node for stage in sketch.stages] == [n.name for n in graph.nodes]


@pytest.mark.parametrize("sketch", OPEN_SKETCHES, ids=lambda sketch: sketch.key)
def test_every_axis_of_a_tiled_node_is_split_once(sketch: Sketch) -> None:
    split = Counter((v.node, v.axis) for v in sketch.variables if isinstance(v, Split))
    expected = {
        (stage.node, position): axis.extent
        for stage in sketch.tiled
        for position, axis in enumerate(sketch.dag.node[stage.node].axes)
        if axis.extent > 1
    }
    assert set(split) == set(expected)
    assert set(split.values()) <= {1}
    assert all(v.extent == expected[v.node, v.axis] for v in sketch.variables if isinstance(v, Split))


@pytest.mark.parametrize("sketch", OPEN_SKETCHES, ids=lambda sketch: sketch.key)
def test_columns_are_the_variables_without_gaps_or_overlaps(sketch: Sketch) -> None:
    covered = [column for where in sketch.columns.values() for column in range(where.start, where.stop)]
    assert covered == list(range(sketch.num_columns))
    assert len(sketch.columns) == len(sketch.variables)


def test_padding_may_move_down_to_the_outermost_reduction_level() -> None:
    sketch = generate(dags.conv2d())[0]
    (location,) = (v for v in sketch.variables if v.node == "pad")
    assert location.options == ("inline", "root", "1", "2", "3")  # type: ignore[union-attr]
    pooling = generate(dags.max_pool())[0]
    (location,) = (v for v in pooling.variables if v.node == "pad")
    assert location.options == ("inline", "root", "1")  # type: ignore[union-attr]


def test_a_node_read_twice_does_not_move() -> None:
    graph = dag(
        {"data": (16, 16), "left": (16, 16), "right": (16, 16)},
        [
            node("pad", {"i": 16, "j": 16}, ["data[i, j]"], has_branch=True),
            node("first", {"i": 16, "j": 16}, ["pad[i, k]", "left[k, j]"], reduction={"k": 16}),
            node("second", {"i": 16, "j": 16}, ["pad[i, k]", "right[k, j]"], reduction={"k": 16}),
            node("both", {"i": 16, "j": 16}, ["first[i, j]", "second[i, j]"]),
        ],
    )
    for sketch in generate(graph):
        assert sketch.stage["pad"].placement is Placement.NEST


def test_an_epilogue_is_fused_into_one_of_its_producers_only() -> None:
    graph = dag(
        {"data": (16, 16), "left": (16, 16), "right": (16, 16)},
        [
            node("first", {"i": 16, "j": 16}, ["data[i, k]", "left[k, j]"], reduction={"k": 16}),
            node("second", {"i": 16, "j": 16}, ["data[i, k]", "right[k, j]"], reduction={"k": 16}),
            node("both", {"i": 16, "j": 16}, ["first[i, j]", "second[i, j]"]),
        ],
    )
    for sketch in generate(graph):
        assert sum(stage.epilogue == "both" for stage in sketch.stages) <= 1


def test_a_movable_node_finds_its_reader_through_inlined_ones() -> None:
    graph = dag(
        {"data": (16, 16), "weight": (16, 16)},
        [
            node("pad", {"i": 16, "k": 16}, ["data[i, k]"], has_branch=True),
            node("scale", {"i": 16, "k": 16}, ["pad[i, k]"], flops=1.0),
            node("matmul", {"i": 16, "j": 16}, ["scale[i, k]", "weight[k, j]"], reduction={"k": 16}),
        ],
    )
    sketch = generate(graph)[0]
    assert sketch.stage["scale"].placement is Placement.INLINE
    assert sketch.host(sketch.stage["pad"]) == sketch.stage["matmul"]


def test_a_sum_of_everything_does_not_move() -> None:
    graph = dag(
        {"data": (16,), "left": (16, 16), "right": (16, 16)},
        [
            node("total", {}, ["data[k]"], reduction={"k": 16}),
            node("matmul", {"i": 16, "j": 16}, ["left[i, k]", "right[k, j]", "total"], reduction={"k": 16}),
        ],
    )
    for sketch in generate(graph):
        assert sketch.stage["total"].placement is Placement.NEST


def test_own_rules_come_before_the_built_in_ones() -> None:
    def is_matmul(state: State) -> Verdict:
        return Verdict.APPLY_AND_STOP if state.current.name == "matmul" else Verdict.SKIP

    def leave(state: State) -> list[State]:
        return [state.put(Stage(state.current.name, Placement.NEST))]

    sketches = generate(dags.matmul(), [Rule("LeaveAlone", is_matmul, leave)])
    assert [sketch.key for sketch in sketches] == ["nest matmul"]


def test_a_rule_that_only_applies_adds_its_sketches_to_the_others() -> None:
    def leave(state: State) -> list[State]:
        return [state.put(Stage(state.current.name, Placement.NEST))]

    sketches = generate(dags.matmul(), [Rule("AlsoAlone", lambda state: Verdict.APPLY, leave)])
    assert [sketch.key for sketch in sketches] == ["nest matmul", *_keys(dags.matmul())]
