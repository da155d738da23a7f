"""Valid traces, and rejected ones: with code, calls or other objects."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.trace import INSTRUCTIONS, TraceRefused, parse_trace, write_trace
from tests.traces import BLOCK, LOOPS, NODES, calling, index_map, trace, transformed

VERSION = {"tvm_version": "0.27.0.post1"}


def annotated(key: Any, value: Any) -> str:
    return trace(BLOCK, LOOPS, ["Annotate", ["l1", value], [key], []])


# Only a number, the padding of a layout.
PADDING = [
    *NODES[:4],
    {"type": "ffi.Array", "data": [3]},
    {"type": "ir.PrimType", "data": {"span": 0, "dtype": "float32"}},
    {"type": "ir.FloatImm", "data": {"span": 0, "ty": 5, "value": 0.5}},
    {"type": "ffi.Array", "data": [6]},
    {
        "type": "tirx.IndexMap",
        "data": {"initial_indices": 4, "final_indices": 7, "inverse_index_map": 0},
    },
]
SAMPLED = trace(
    BLOCK,
    LOOPS,
    ["SamplePerfectTile", ["l1"], [2, 64], ["v4", "v5"]],
    ["Split", ["l1", "v4", "v5"], [True, False], ["l6", "l7"]],
    ["SampleCategorical", [], [[0, 16, 64], [0.25, 0.25, 0.5]], ["v8"]],
    ["Annotate", ["b0", "v8"], ["meta_schedule.unroll_explicit"], []],
    ["SampleComputeLocation", ["b0"], [], ["l9"]],
    decisions=[[2, [4, 16]], [4, 2], [6, -1]],
)
GOOD = [
    trace(),
    trace(BLOCK, LOOPS, ["Split", ["l1", "None", 16], [True, False], ["l4", "l5"]]),
    SAMPLED,
    annotated("pragma_auto_unroll_max_step", 64),
    annotated("meta_schedule.layout_rewrite_preproc", True),
    annotated("meta_schedule.tiling_structure", '"SSRSRS"'),
    annotated("software_pipeline_stage", [0, 0, 1]),
    transformed(index_map(NODES)),
    trace(
        BLOCK,
        [
            "TransformLayout",
            ["b0", index_map(NODES)],
            [1, 0, json.dumps(json.loads(index_map(PADDING)), indent=2), 0],
            [],
        ],
    ),
    transformed(index_map(NODES, metadata=VERSION)),
    trace(BLOCK, ["TransformBlockLayout", ["b0"], [json.dumps(json.loads(index_map(NODES)), indent=2)], []]),
    trace(BLOCK, ["CacheRead", ["b0", ["b0"]], [0, "shared.dyn"], ["b1"]]),
    trace(BLOCK, LOOPS, ["Bind", ["l1"], ["threadIdx.x"], []], ["Tensorize", ["b0"], ["dot_4x4", 1], []]),
]


@pytest.mark.parametrize("text", GOOD)
def test_valid_traces_are_unchanged(text: str) -> None:
    assert write_trace(parse_trace(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[[1" + "0" * 10_000 + "],[]]", "JSON"),
        ("{}", "a list of instructions"),
        ("[]", "a list of instructions"),
        ("[[], [], []]", "a list of instructions"),
        (trace("Annotate"), "a kind, its inputs"),
        (trace(["Annotate", [], []]), "a kind, its inputs"),
        (trace([["Annotate"], [], [], []]), "a kind, its inputs"),
        (trace(["UnsafeSetDType", ["b0", 0], ["float16"], []]), "UnsafeSetDType"),
        (trace(["UnsafeHideBufferAccess", [], [], []]), "UnsafeHideBufferAccess"),
        (trace(["SplitThatNobodyKnows", [], [], []]), "SplitThatNobodyKnows"),
        (trace(["GetLoops", ["b0"], [], []]), "no block of an earlier instruction"),
        (trace(BLOCK, BLOCK), "the name b0 is given twice"),
        (trace(["GetSBlock", [], ["a", "main"], ["l0"]]), "no name of its outputs"),
        (trace(["GetSBlock", [], ["a", "main"], []]), "it has 0 outputs"),
        (trace(["GetSBlock", [], ['a"', "main"], ["b0"]]), "no name"),
        (trace(BLOCK, LOOPS, ["Parallel", ["b0"], [], []]), "no loop of an earlier"),
        (trace(BLOCK, LOOPS, ["Parallel", ["l1", "l2"], [], []]), "it has 2 inputs, not 1"),
        (trace(BLOCK, LOOPS, ["Parallel", ["l1"], [1], []]), "it has 1 attributes, not 0"),
        (trace(BLOCK, LOOPS, ["Parallel", [["l1"]], [], []]), "no loop of an earlier"),
        (trace(BLOCK, LOOPS, ["Split", ["l1", 1.5], [1, 0], ["l4"]]), "no integer of 32 bits"),
        (trace(BLOCK, LOOPS, ["Split", ["l1", 1 << 31], [1, 0], ["l4"]]), "no integer of 32 bits"),
        (trace(BLOCK, LOOPS, ["Split", ["l1", {"a": 1}], [1, 0], ["l4"]]), "no integer of 32 bits"),
        (trace(BLOCK, LOOPS, ["Bind", ["l1"], ["threadIdx.x; system()"], []]), "no GPU thread axis"),
        (trace(BLOCK, ["SetScope", ["b0"], [0, "global.vtcm"], []]), "no storage scope"),
        (trace(BLOCK, ["Tensorize", ["b0"], ["a/b", 1], []]), "no name of an intrinsic"),
        (trace(["SampleCategorical", [], [[1], [float("nan")]], ["v0"]]), "nan is no probability"),
        (trace(["SampleCategorical", [], [[1], [float("inf")]], ["v0"]]), "inf is no probability"),
        (annotated("pragma_import_llvm", '"define void @x() { ret void }"'), "pragma_import_llvm"),
        (annotated("pragma_import_c", '"int system(const char *);"'), "pragma_import_c"),
        (annotated("schedule_rule", '"tvm.anything"'), "schedule_rule"),
        (annotated("pragma_auto_unroll_max_step", '"define void @x() { ret void }"'), "no variable"),
        (annotated("pragma_auto_unroll_max_step", 1 << 40), "no integer of 32 bits"),
        (annotated("meta_schedule.tiling_structure", '"a name; and more"'), "no quoted name"),
        (annotated("meta_schedule.tiling_structure", index_map(NODES)), "no quoted name"),
        (annotated("software_pipeline_stage", [0, {"a": 1}]), "no integer of 32 bits"),
        (annotated(["pragma_auto_unroll_max_step"], 1), "no annotation that schedules need"),
        (trace(BLOCK, ["Annotate", ["b0", 1, 2], ["pragma_unroll_explicit"], []]), "3 inputs, not 2"),
        (trace(decisions=[[0, "code"]]), "a decision"),
        (trace(decisions=[5]), "a decision"),
        (trace(BLOCK, decisions=[[0, 1]]), "nothing is decided there"),
        (trace(BLOCK, decisions=[[True, 1]]), "a decision"),
        (trace(BLOCK, ["SampleComputeLocation", ["b0"], [], ["l1"]], decisions=[[1, [1]]]), "no integer"),
        (
            trace(BLOCK, ["SampleComputeLocation", ["b0"], [], ["l1"]], decisions=[[1, 1], [1, 1]]),
            "decided twice",
        ),
    ],
)
def test_invalid_traces_are_rejected_with_one_sentence(text: str, why: str) -> None:
    with pytest.raises(TraceRefused, match=why):
        parse_trace(text)


@pytest.mark.parametrize("name", ["root_index", "nodes", "type"])
def test_calls_in_index_maps_with_escaped_keys_are_rejected(name: str) -> None:
    """TVM's reader takes root\\u005findex for root_index."""
    plain = calling("system").replace("root\\\\u005findex", "root_index")
    assert "root_index" in plain
    escaped = plain.replace(f'\\"{name}', f'\\"{name[:-1]}\\\\u{ord(name[-1]):04x}')
    for text in (plain, escaped, calling("system")):
        with pytest.raises(TraceRefused, match=r"more than arithmetic|escaped"):
            parse_trace(text)


def _changed(**fields: Any) -> list[dict[str, Any]]:
    nodes = copy.deepcopy(NODES)
    nodes[-1]["data"] |= fields
    return nodes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (index_map([*NODES, {"type": "ir.Op", "data": "tirx.call_extern"}], root=11), "more than arithmetic"),
        (index_map([*NODES[:-1], {"type": 5}]), "has no type"),
        (index_map([*NODES[:-1], "no node"]), "has no type"),
        (index_map(NODES, root=9), "names no index map"),
        (index_map(NODES, root=-1), "names no index map"),
        (index_map(NODES, more=1), "nothing else"),
        (index_map(NODES, metadata={"tvm_version": "0.27", "more": 1}), "more than TVM's version"),
        (index_map(NODES)[:-1] + ',"nodes":[]}', "a key twice"),
        (index_map(_changed(inverse_index_map=6)), "another kind"),
        (index_map(_changed(final_indices=3)), "another kind"),
        (index_map(_changed(initial_indices=10)), "not from variables"),
        (index_map(_changed(final_indices=99)), "later, missing"),
        (index_map(_changed(final_indices=True)), "later, missing"),
        (index_map(_changed(more=0)), "other fields"),
        (index_map([{"type": "ir.FloatImm", "data": {"value": float("nan")}}]), "the number NaN"),
        (index_map([{"type": "float", "data": 1.5}]), "more than arithmetic"),
        (index_map([{"type": "int", "data": 1 << 70}, *NODES]), "another value"),
        (index_map([{"type": "ffi.String", "data": "a b"}, *NODES]), "another value"),
        (index_map([{"type": "ffi.Array", "data": [0]}, *NODES]), "later, missing"),
        ("[" * 100_000, "can't be read as JSON"),
        ("{}", "nothing else"),
    ],
)
def test_index_maps_may_hold_only_arithmetic(text: str, why: str) -> None:
    with pytest.raises(TraceRefused, match=why):
        parse_trace(transformed(text))


def test_an_index_map_that_doubles_at_every_node_is_refused() -> None:
    """As a tree, which TVM walks, it would have more nodes than any memory."""
    nodes = copy.deepcopy(NODES[:-2])
    for _ in range(60):
        last = len(nodes) - 1
        nodes.append({"type": "prim.Add", "data": {"span": 0, "ty": 1, "a": last, "b": last}})
    nodes += [{"type": "ffi.Array", "data": [len(nodes) - 1]}, copy.deepcopy(NODES[-1])]
    nodes[-1]["data"]["final_indices"] = len(nodes) - 2
    with pytest.raises(TraceRefused, match="too large or too deep"):
        parse_trace(transformed(index_map(nodes)))


def test_the_length_of_a_trace_is_limited() -> None:
    with pytest.raises(TraceRefused, match="at most"):
        parse_trace(trace(*[BLOCK] * 20_000))


STRANGE: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, -1, 1 << 31, 1.5, float("nan"), "", "None", "b0", "l1", "v4", "{}", '"x"', "\ud800"),
        *([], {}, [[]], {"a": 1}, "main", "system", calling("system"), index_map(NODES)),
    ]
)


@given(st.sampled_from(GOOD), st.data())
def test_mutated_traces_are_rejected_or_rewritten_by_the_schema(text: str, data: st.DataObject) -> None:
    steps = json.loads(text)
    for _ in range(data.draw(st.integers(1, 3))):
        _mutate(steps, data)
    try:
        rewritten = write_trace(parse_trace(json.dumps(steps)))
    except TraceRefused:
        return
    assert parse_trace(rewritten) == json.loads(rewritten)
    assert {step[0] for step in json.loads(rewritten)[0]} <= INSTRUCTIONS.keys()
    for word in ("call_extern", "ir.Op", "ir.Call", "ir.StringImm"):
        assert word not in rewritten


def _mutate(value: Any, data: st.DataObject) -> None:
    """Change one element of nested lists: insert a strange value, copy another element, or remove it."""
    places = []
    lists = [value]
    while lists:
        current = lists.pop()
        places += [(current, at) for at in range(len(current))]
        lists += [item for item in current if isinstance(item, list)]
    if not places:
        return
    current, at = data.draw(st.sampled_from(places))
    match data.draw(st.sampled_from(["replace", "copy", "remove", "insert"])):
        case "replace":
            current[at] = copy.deepcopy(data.draw(STRANGE))
        case "copy":
            other, where = data.draw(st.sampled_from(places))
            current[at] = copy.deepcopy(other[where])
        case "remove":
            del current[at]
        case "insert":
            current.insert(at, copy.deepcopy(data.draw(STRANGE)))


@given(st.integers(0, len(NODES) - 1), STRANGE, st.data())
def test_mutated_index_maps_are_rejected_or_stay_arithmetic(at: int, value: Any, data: st.DataObject) -> None:
    nodes = copy.deepcopy(NODES)
    fields = nodes[at].get("data")
    if isinstance(fields, dict):
        fields[data.draw(st.sampled_from(sorted(fields)))] = value
    else:
        nodes[at][data.draw(st.sampled_from(["type", "data"]))] = value
    try:
        steps = parse_trace(transformed(index_map(nodes)))
    except TraceRefused:
        return
    rewritten = json.loads(steps[0][1][1][1])
    assert {node["type"] for node in rewritten["nodes"]} <= {node["type"] for node in NODES}
