"""The rules that apply to each kind of node, and a user's own rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search.dag import Dag, Index, Term
from search.rules.cpu import RESULTS_PER_CORE
from search.rules.derive import ConditionKind, Rule, State
from search.rules.space import generate
from search.sketches.stage import Rfactor, StageKind
from search.stages.cpu import LoopNest, Tiled
from search.stages.inlined import Inlined
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE


def _keys(graph: Dag) -> list[str]:
    return [sketch.key for sketch in generate(graph, DEVICE)]


def _rfactors(graph: Dag, name: str) -> set[Rfactor]:
    return {sketch.stage[name].rfactor for sketch in generate(graph, DEVICE)} - {Rfactor.NONE}


def test_a_product_without_a_reader_is_tiled_with_and_without_a_cache() -> None:
    assert _keys(dags.matmul()) == [
        "tile matmul SSRSRS in a write cache, copy at 1",
        "tile matmul SSRSRS in a write cache, copy at 2",
        "tile matmul SSRSRS",
    ]


def test_an_elementwise_reader_is_computed_in_the_tile() -> None:
    placed = [
        (sketch.stage["conv"].epilogue_level, sketch.stage["relu"].kind)
        for sketch in generate(dags.conv2d(), DEVICE)
    ]
    assert placed == [(1, StageKind.FUSED), (2, StageKind.FUSED), (0, StageKind.NEST)]


def test_an_epilogue_is_fused_into_one_of_its_producers_only() -> None:
    square = {"i": 16, "j": 16}
    graph = dag(
        {"data": (16, 16), "left": (16, 16), "right": (16, 16)},
        [
            node("first", square, ["data[i, k]", "left[k, j]"], reduction={"k": 16}),
            node("second", square, ["data[i, k]", "right[k, j]"], reduction={"k": 16}),
            node("both", square, ["first[i, j]", "second[i, j]"]),
        ],
    )
    fused = [sum(stage.epilogue == "both" for stage in sketch.stages) for sketch in generate(graph, DEVICE)]
    assert set(fused) == {0, 1}


def test_sums_over_constant_matrices_are_unrolled() -> None:
    for sketch in generate(dags.winograd(), DEVICE):
        assert [stage.node for stage in sketch.of_kind(StageKind.UNROLLED)] == ["packed", "inverse"]
        assert [stage.node for stage in sketch.of_kind(StageKind.INLINE)] == ["B", "A"]


def test_a_chain_of_transforms_is_also_computed_in_blocks_of_rows() -> None:
    few = replace(DEVICE, cores=2)
    chains = [s.stages for s in generate(dags.winograd_image(12), few) if s.of_kind(StageKind.BLOCKS)]
    assert [stages[-1].blocks for stages in chains] == [2, 4, 12]
    for stages in chains:
        in_blocks = {stage.node: stage.compute_at for stage in stages if stage.blocks}
        assert in_blocks == {"packed": "relu", "product": "relu", "inverse": "relu", "relu": None}
        assert all(isinstance(stage, Inlined) for stage in stages if not stage.blocks)


def test_attention_is_only_computed_in_blocks_of_queries() -> None:
    """At most half of the L2 cache holds the scores of a block: 16 queries of 32 keys are 2 KiB."""
    small = replace(DEVICE, l2_bytes=4 << 10)
    found = generate(dags.joined_attention(), small)
    assert [sketch.stages[-1].blocks for sketch in found] == [2, 4]
    assert str(found[0].key) == (
        "tile scores SSRSRS in blocks; inline scaled; nest max rfactor inner in blocks; nest exp in blocks; "
        "nest sum rfactor inner in blocks; nest weights in blocks; tile attention SSRSRS in blocks; "
        "nest joined in 2 blocks"
    )


def test_several_results_at_once_are_neither_tiled_nor_factored() -> None:
    assert _keys(dags.argmax()) == ["nest found; nest position"]
    assert _keys(dags.layer_norm_one_pass()) == ["nest sums; nest norm"]


def test_columns_are_summed_up_in_tiles_or_in_their_reader() -> None:
    assert _keys(dags.global_pool()) == [
        "tile sum SRS, average at 1; fuse average",
        "tile sum SRS; nest average",
        "nest sum; nest average",
    ]


FEW = DEVICE.cores * RESULTS_PER_CORE


def _row_sums(rows: int, columns: int) -> Dag:
    return dag({"a": (rows, columns)}, [node("sum", {"i": rows}, ["a[i, k]"], reduction={"k": columns})])


def _column_sums(rows: int, columns: int) -> Dag:
    return dag({"a": (columns, rows)}, [node("sum", {"i": rows}, ["a[k, i]"], reduction={"k": columns})])


BOTH = {Rfactor.INNER, Rfactor.OUTER}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        pytest.param(_row_sums(FEW, 256), BOTH, id="as many results as cores can share"),
        pytest.param(_row_sums(FEW + 1, 256), {Rfactor.INNER}, id="one result too many"),
        pytest.param(_row_sums(16, 16), BOTH, id="as many results as summands"),
        pytest.param(_row_sums(17, 16), {Rfactor.INNER}, id="more results than summands"),
        pytest.param(_row_sums(4, DEVICE.cores), {Rfactor.INNER}, id="a summand for every core"),
        pytest.param(_row_sums(4, DEVICE.cores + 2), BOTH, id="more summands than cores"),
        pytest.param(_row_sums(40, 67), {Rfactor.UNEVEN}, id="the last vector of a long prime is shorter"),
        pytest.param(_row_sums(40, 49), {*BOTH, Rfactor.UNEVEN}, id="odd vectors, or an odd rest"),
        pytest.param(_row_sums(4, 7), {Rfactor.INNER}, id="a prime that is one short vector"),
        pytest.param(_column_sums(16, 64), {Rfactor.OUTER}, id="columns fill vectors by themselves"),
        pytest.param(_column_sums(FEW + 1, 256), set(), id="many columns"),
        pytest.param(dags.matmul(8, 8, 64), {Rfactor.OUTER} | BOTH, id="a product of few results"),
        pytest.param(dags.matmul(8, 9, 64), set(), id="a product of too many results"),
        pytest.param(dags.matmul(8, 8, 60), set(), id="a product of more results than summands"),
    ],
)
def test_reductions_of_few_results_are_factored(graph: Dag, expected: set[Rfactor]) -> None:
    assert _rfactors(graph, graph.nodes[0].name) == expected


def test_more_cores_share_more_results() -> None:
    many = _row_sums(FEW + 1, 256)
    found = generate(many, replace(DEVICE, cores=2 * DEVICE.cores))
    assert {sketch.stage["sum"].rfactor for sketch in found} == {*BOTH, Rfactor.NONE}


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_known_reducers_are_factored(reducer: str) -> None:
    summed = node("sum", {"i": 4}, ["a[i, k]"], reduction={"k": 64}, reducer=reducer)
    assert _rfactors(dag({"a": (4, 64)}, [summed]), "sum") == BOTH


def test_unknown_reducers_are_not() -> None:
    summed = node("sum", {"i": 4}, ["a[i, k]"], reduction={"k": 64}, reducer="other")
    assert not _rfactors(dag({"a": (4, 64)}, [summed]), "sum")


def test_a_factored_reduction_may_also_be_a_plain_nest() -> None:
    assert _keys(dags.total()) == ["nest total rfactor inner", "nest total rfactor outer", "nest total"]


def _leave_matmul(kind: ConditionKind) -> Rule:
    def condition(state: State) -> ConditionKind:
        return kind if state.current.name == "matmul" else ConditionKind.SKIP

    def leave(state: State) -> list[State]:
        return [state.put(LoopNest(state.current.name))]

    return Rule("LeaveAlone", condition, leave)


def test_a_plugins_rule_can_skip_built_in_rules() -> None:
    found = generate(dags.matmul(), DEVICE, [_leave_matmul(ConditionKind.APPLY_AND_SKIP_REST)])
    assert [sketch.key for sketch in found] == ["nest matmul"]


def test_a_rule_that_only_applies_adds_its_sketches_to_the_others() -> None:
    found = generate(dags.matmul(), DEVICE, [_leave_matmul(ConditionKind.APPLY)])
    assert [sketch.key for sketch in found] == ["nest matmul", *_keys(dags.matmul())]


def test_a_rule_that_skips_changes_nothing() -> None:
    found = generate(dags.softmax(), DEVICE, [_leave_matmul(ConditionKind.APPLY_AND_SKIP_REST)])
    assert [sketch.key for sketch in found] == _keys(dags.softmax())


def test_a_rule_may_depend_on_the_device() -> None:
    def on_many_cores(state: State) -> ConditionKind:
        return ConditionKind.APPLY_AND_SKIP_REST if state.device.cores > 8 else ConditionKind.SKIP

    rule = replace(_leave_matmul(ConditionKind.APPLY), condition=on_many_cores)
    assert len(generate(dags.matmul(), DEVICE, [rule])) == 3
    assert len(generate(dags.matmul(), replace(DEVICE, cores=16), [rule])) == 1


def test_a_rule_may_replace_a_stage_that_is_already_placed() -> None:
    """The producer's rule makes its inlined reader a nest again."""

    def is_add(state: State) -> ConditionKind:
        return ConditionKind.APPLY_AND_SKIP_REST if state.current.name == "conv" else ConditionKind.SKIP

    def take_back(state: State) -> list[State]:
        return [state.put(Tiled("conv", "SSRSRS"), LoopNest("add"))]

    (found,) = generate(dags.conv2d(), DEVICE, [Rule("TakeBack", is_add, take_back)])
    assert found.key == "nest pad; tile conv SSRSRS; nest add; nest relu"


def test_an_epilogue_needs_tiles_that_write_boxes() -> None:
    """In rows 4*io + ii a tile over io writes every fourth row, and a copy of its box would overwrite
    others."""
    graph = dags.matmul()
    (plain,) = graph.nodes
    first, *others = plain.write.indices
    apart = Index((Term(first.terms[0].axis, 4), *first.terms), 0)
    apart_rows = replace(plain, write=replace(plain.write, indices=(apart, *others)))
    found = generate(replace(graph, nodes=(apart_rows,)), DEVICE)
    assert [sketch.key for sketch in found] == ["tile matmul SSRSRS"]
    assert len(generate(graph, DEVICE)) == 3
