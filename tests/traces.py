"""Traces for tests: valid ones, and ones with which an attacker would run code."""

from __future__ import annotations

import json
from typing import Any

BLOCK = ["GetSBlock", [], ["T_matmul", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
# (i, j) -> (i % 4, j)
NODES: list[dict[str, Any]] = [
    {"type": "None"},
    {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
    {"type": "ffi.String", "data": "i"},
    {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2}},
    {"type": "ffi.String", "data": "j"},
    {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 4}},
    {"type": "ffi.Array", "data": [3, 5]},
    {"type": "int", "data": 4},
    {"type": "ir.IntImm", "data": {"span": 0, "ty": 1, "value": 7}},
    {"type": "prim.FloorMod", "data": {"span": 0, "ty": 1, "a": 3, "b": 8}},
    {"type": "ffi.Array", "data": [9, 5]},
    {
        "type": "tirx.IndexMap",
        "data": {"initial_indices": 6, "final_indices": 10, "inverse_index_map": 0},
    },
]


def trace(*instructions: Any, decisions: Any = ()) -> str:
    return json.dumps([list(instructions), list(decisions)], separators=(",", ":"))


def index_map(nodes: list[Any], root: int | None = None, **more: Any) -> str:
    """Return the text of an index map whose last node is the map."""
    graph = {"root_index": len(nodes) - 1 if root is None else root, "nodes": nodes, **more}
    return json.dumps(graph, separators=(",", ":"))


def transformed(map_text: str) -> str:
    """Return a trace that lays the second operand of a matrix product out by an index map."""
    return trace(BLOCK, ["TransformLayout", ["b0", map_text], [1, 0, None, 0], []])


def calling(function: str) -> str:
    """Return a trace whose index map calls a function of the C library.

    It spells root_index as only a JSON parser understands it. Its inverse map
    keeps TVM from checking that the map is one to one.

    (i, j) -> ((i + call_extern("int32", function, "touch /tmp/taken")) % 4, j)
    """
    texts = [
        {"type": "ffi.String", "data": function},
        {"type": "ir.StringType", "data": {"span": 0}},
        {"type": "ir.StringImm", "data": {"span": 0, "ty": 13, "value": 12}},
        {"type": "ffi.String", "data": "touch /tmp/taken"},
        {"type": "ir.StringImm", "data": {"span": 0, "ty": 13, "value": 15}},
        {"type": "ir.Op", "data": "tirx.call_extern"},
        {"type": "ffi.Array", "data": [14, 16]},
        {"type": "ffi.Array", "data": []},
        {
            "type": "ir.Call",
            "data": {"span": 0, "ty": 1, "op": 17, "args": 18, "attrs": 0, "ty_args": 19},
        },
        {"type": "prim.Add", "data": {"span": 0, "ty": 1, "a": 3, "b": 20}},
        {"type": "prim.FloorMod", "data": {"span": 0, "ty": 1, "a": 21, "b": 8}},
        {"type": "ffi.Array", "data": [22, 5]},
        {
            "type": "tirx.IndexMap",
            "data": {"initial_indices": 6, "final_indices": 23, "inverse_index_map": 11},
        },
    ]
    return transformed(index_map([*NODES, *texts]).replace("root_index", "root\\u005findex"))
