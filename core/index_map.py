"""Check and rewrite index maps of schedule traces: TVM objects in JSON that may contain only arithmetic on
variables.

    (i, j) -> (i // 16, j, i % 16)
is
    {"root_index": 13, "nodes": [{"type": "ir.Var", "data": {...}}, ...], "metadata": {...}}

A node refers to others by their numbers. In TVM's JSON, each node follows the nodes that it refers to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

MAX_TEXT_CHARS = 1 << 20
MAX_NODES = 4096
# The most visited nodes. A node that two others share counts twice, because TVM visits it twice.
MAX_TREE_NODES = 1 << 16
MAX_DEPTH = 256
MAX_INTEGER = (1 << 63) - 1
_DTYPE = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|bfloat16|bool")
_VARIABLE = re.compile(r"\w[\w.]{0,63}", re.ASCII)
_VERSION = re.compile(r"\w[\w.+-]{0,63}", re.ASCII)
_EXPRESSIONS = frozenset(
    (
        *("ir.Var", "ir.IntImm", "ir.FloatImm", "prim.Cast"),
        *("prim.Add", "prim.Sub", "prim.Mul", "prim.FloorDiv", "prim.FloorMod", "prim.Div", "prim.Mod"),
        *("prim.Min", "prim.Max"),
    )
)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and _DTYPE.fullmatch(value) is not None


def _is_float(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# A field's allowed content: the kinds of objects that it refers to, or a test of its inline value.
_Content = frozenset[str] | Callable[[Any], bool]
_NONE, _TYPE = frozenset(("None",)), frozenset(("ir.PrimType",))
_TYPED: Mapping[str, _Content] = {"span": _NONE, "ty": _TYPE}
_BINARY = {**_TYPED, "a": _EXPRESSIONS, "b": _EXPRESSIONS}
# The fields of each kind of object.
_FIELDS: Mapping[str, Mapping[str, _Content]] = {
    "ir.PrimType": {"span": _NONE, "dtype": _is_dtype},
    "ir.Var": {**_TYPED, "name": frozenset(("ffi.String",))},
    "ir.IntImm": {**_TYPED, "value": frozenset(("int",))},
    "ir.FloatImm": {**_TYPED, "value": _is_float},
    "prim.Cast": {**_TYPED, "value": _EXPRESSIONS},
    **{kind: _BINARY for kind in _EXPRESSIONS if kind.startswith("prim.") and kind != "prim.Cast"},
    "tirx.IndexMap": {
        "initial_indices": frozenset(("ffi.Array",)),
        "final_indices": frozenset(("ffi.Array",)),
        # An inverse must be None, because TVM doesn't check a given one, and derives a missing one.
        "inverse_index_map": _NONE,
    },
}


class IndexMapRefused(ValueError):
    """A text isn't an index map, or contains more than arithmetic. The message is a clause."""


def rewrite_index_map(text: object, indent: int | None) -> str:
    """Parse and check an index map. Return JSON that is rewritten from the checked parts. Raises
    IndexMapRefused.

    With an `indent`, the JSON is indented, as in TVM's attributes.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
        raise IndexMapRefused(f"an index map is a text of at most {MAX_TEXT_CHARS} characters")
    if "\\" in text:
        raise IndexMapRefused("an index map has no escaped characters")
    try:
        graph = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if isinstance(error, IndexMapRefused):
            raise
        raise IndexMapRefused("the index map can't be read as JSON") from error
    if not isinstance(graph, dict) or not {"root_index", "nodes"} <= graph.keys() <= _PARTS:
        raise IndexMapRefused("an index map has root_index, nodes and metadata, and nothing else")
    nodes = graph["nodes"]
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise IndexMapRefused(f"an index map has at most {MAX_NODES} nodes")
    rewritten = _Nodes()
    for node in nodes:
        rewritten.add(node)
    root = graph["root_index"]
    if type(root) is not int or not 0 <= root < len(nodes) or rewritten.kinds[root] != "tirx.IndexMap":
        raise IndexMapRefused("the root_index names no index map")
    written = {"root_index": root, "nodes": rewritten.nodes}
    if "metadata" in graph:
        written["metadata"] = _rewrite_metadata(graph["metadata"])
    return json.dumps(written, indent=indent, separators=(",", ":") if indent is None else None)


_PARTS = {"root_index", "nodes", "metadata"}


class _Nodes:
    """The checked nodes of an index map, rewritten."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        # The number of nodes in the tree below each node.
        self._sizes: list[int] = []
        self._depths: list[int] = []

    def add(self, node: Any) -> None:
        """Check the next node. Raises IndexMapRefused."""
        kind = node.get("type") if isinstance(node, dict) else None
        if not isinstance(kind, str):
            raise IndexMapRefused("the index map can't be read: a node has no type")
        children: list[int] = []
        data = None
        if kind != "None":
            if node.keys() != {"type", "data"}:
                raise IndexMapRefused(f"a node of the index map has a type and data, not {len(node)} fields")
            data = self._read(kind, node["data"], children)
        elif node.keys() != {"type"}:
            raise IndexMapRefused("a None in the index map has data")
        self.kinds.append(kind)
        self.nodes.append({"type": kind} if kind == "None" else {"type": kind, "data": data})
        self._sizes.append(1 + sum(self._sizes[child] for child in children))
        self._depths.append(1 + max((self._depths[child] for child in children), default=0))
        if self._sizes[-1] > MAX_TREE_NODES or self._depths[-1] > MAX_DEPTH:
            raise IndexMapRefused("the index map is too large or too deep")

    def _read(self, kind: str, data: Any, children: list[int]) -> Any:
        if kind in _PLAIN:
            if not _PLAIN[kind](data):
                raise IndexMapRefused(f"the index map has a {kind} of another value")
            return data
        if kind == "ffi.Array":
            if not isinstance(data, list):
                raise IndexMapRefused("the index map has an array that is no list")
            return [self._child(child, _EXPRESSIONS, children) for child in data]
        fields = _FIELDS.get(kind)
        if fields is None:
            raise IndexMapRefused(f"the index map is more than arithmetic: {ascii(kind)[1:-1][:64]}")
        if not isinstance(data, dict) or data.keys() != fields.keys():
            raise IndexMapRefused(f"the index map has a {kind} with other fields")
        read = {name: self._field(data[name], fields[name], children) for name in fields}
        if kind == "tirx.IndexMap":
            initial = self.nodes[read["initial_indices"]]["data"]
            if any(self.kinds[child] != "ir.Var" for child in initial) or len(set(initial)) != len(initial):
                raise IndexMapRefused("the index map is not from variables")
        return read

    def _field(self, value: Any, content: _Content, children: list[int]) -> Any:
        if isinstance(content, frozenset):
            return self._child(value, content, children)
        if not content(value):
            raise IndexMapRefused(f"the index map has the value {ascii(value)[:32]}")
        return value

    def _child(self, value: Any, kinds: frozenset[str], children: list[int]) -> int:
        if type(value) is not int or not 0 <= value < len(self.kinds) or self.kinds[value] not in kinds:
            raise IndexMapRefused("the index map refers to a node that is later, missing or of another kind")
        children.append(value)
        return value


_PLAIN: Mapping[str, Callable[[Any], object]] = {
    "int": lambda data: type(data) is int and abs(data) <= MAX_INTEGER,
    "ffi.String": lambda data: isinstance(data, str) and _VARIABLE.fullmatch(data),
}


def _rewrite_metadata(metadata: Any) -> dict[str, str]:
    version = metadata.get("tvm_version") if isinstance(metadata, dict) and len(metadata) == 1 else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise IndexMapRefused("the index map's metadata is more than TVM's version")
    return {"tvm_version": version}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise IndexMapRefused("the index map has a key twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise IndexMapRefused(f"the index map has the number {text}")
