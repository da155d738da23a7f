"""What a trace may say, and what it may not: code, calls, objects of other kinds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.trace import TraceRefused, parse_trace

BLOCK = ["GetSBlock", [], ["matmul", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
NODES = [
    {"type": "None"},
    {"type": "ir.PrimType", "data": {"dtype": "int32"}},
    {"type": "ir.Var", "data": {"name": 2}},
    {"type": "prim.FloorMod", "data": {"a": 2, "b": 3}},
    {"type": "tirx.IndexMap", "data": {}},
]


def trace(*instructions: Any, decisions: Any = ()) -> str:
    return json.dumps([list(instructions), list(decisions)])


def annotated(key: Any, value: Any) -> str:
    return trace(BLOCK, LOOPS, ["Annotate", ["l1", value], [key], []])


def index_map(nodes: list[Any]) -> str:
    return trace(
        BLOCK, ["TransformLayout", ["b0", json.dumps({"root_index": 1, "nodes": nodes})], [0, 1], []]
    )


@pytest.mark.parametrize(
    "text",
    [
        trace(),
        trace(
            BLOCK, LOOPS, ["Split", ["l1", "None", 16], [True, False], ["l4", "l5"]], decisions=[[1, [4, 16]]]
        ),
        annotated("pragma_auto_unroll_max_step", 64),
        annotated("meta_schedule.unroll_explicit", "v12"),
        annotated("meta_schedule.layout_rewrite_preproc", True),
        annotated("meta_schedule.tiling_structure", '"SSRSRS"'),
        annotated("software_pipeline_stage", [0, 0, 1]),
        index_map(NODES),
    ],
)
def test_traces_of_schedules_are_accepted(text: str) -> None:
    assert parse_trace(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSON"),
        ("[" * 100_000, "JSON"),
        ("{}", "a list of instructions"),
        ("[]", "a list of instructions"),
        ("[[], [], []]", "a list of instructions"),
        (trace("Annotate"), "a kind, its inputs"),
        (trace(["Annotate", [], []]), "a kind, its inputs"),
        (trace([["Annotate"], [], [], []]), "a kind, its inputs"),
        (trace(["UnsafeSetDType", ["b0", 0], ["float16"], []]), "UnsafeSetDType"),
        (trace(["SplitThatNobodyKnows", [], [], []]), "SplitThatNobodyKnows"),
        (annotated("pragma_import_llvm", '"define void @x() { ret void }"'), "pragma_import_llvm"),
        (annotated("pragma_import_c", '"int system(const char *);"'), "pragma_import_c"),
        (annotated("pragma_auto_unroll_max_step", '"define void @x() { ret void }"'), "another kind"),
        (annotated("pragma_auto_unroll_max_step", 1 << 40), "another kind"),
        (annotated("meta_schedule.tiling_structure", '"a name; and more"'), "another kind"),
        (annotated("software_pipeline_stage", ["l1", {"a": 1}]), "another kind"),
        (annotated(["pragma_auto_unroll_max_step"], 1), "has a key and a value"),
        (trace(["Annotate", ["l1", 1, 2], ["pragma_unroll_explicit"], []]), "has a key and a value"),
        (index_map([*NODES, {"type": "ir.Call", "data": {"op": 1}}]), r"more than arithmetic: ir\.Call"),
        (index_map([*NODES, {"type": 5}]), "more than arithmetic: 5"),
        (index_map([*NODES, "no node"]), "can't be read"),
        (trace(decisions=[[0, "code"]]), "a decision"),
        (trace(decisions=[5]), "a decision"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(TraceRefused, match=why):
        parse_trace(text)


def test_a_trace_is_not_endless() -> None:
    with pytest.raises(TraceRefused, match="at most"):
        parse_trace(trace(*[BLOCK] * 20_000))
