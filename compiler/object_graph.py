"""Check TVM objects in JSON, before TVM reads them and after TVM created them.

TVM's reader is native code that trusts its input. A field that is missing, null or of another kind can crash
the process later. So the text is parsed here, checked against TVM's reflection of its classes, and written
anew.

    {"root_index": 7, "nodes": [{"type": "ir.Var", "data": {"name": 2, "ty": 1, "span": 0}}, ...]}

A node refers to others by their numbers. Each node follows the nodes that it refers to.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import tvm
from tvm.ir import json_compact
from tvm_ffi import core
from tvm_ffi.serialization import from_json_graph_str

MAX_DEPTH = 1000
# The most visited nodes. A node that two others share counts twice, because TVM visits it twice.
MAX_TREE_NODES = 1 << 26
MAX_INTEGER = (1 << 63) - 1
# Fields besides spans that may be null although TVM's reflection doesn't say so.
_NULLABLE = frozenset(("ir.Call.attrs", "ir.Call.ty", "ir.Op.ty"))


class Part(StrEnum):
    """The parts of an object graph, as messages name them."""

    KIND = "object"
    OPERATOR = "operator"
    TEXT = "text"
    ATTRIBUTE = "attribute"
    ANNOTATION = "annotation"
    LOOP = "kind of loop"
    SCOPE = "storage scope"
    THREAD = "thread axis"


# The kinds of loops, by TVM's numbers.
LOOPS = ("serial", "parallel", "vectorized", "unrolled", "bound to a thread")
# A part and its name, such as (Part.OPERATOR, "tirx.exp").
Named = tuple[Part, str]


class GraphRefused(ValueError):
    """A text isn't a valid graph of TVM objects. The message is a clause that says why."""


@dataclass(frozen=True)
class ObjectGraph:
    """A graph of TVM objects. Its nodes have a type and refer to earlier nodes only."""

    nodes: Sequence[Mapping[str, Any]]
    root: int

    @classmethod
    def parse(cls, text: str) -> ObjectGraph:
        """Parse JSON of this version of TVM or an older one. Raises GraphRefused."""
        try:
            graph = json.loads(text, object_pairs_hook=_without_duplicates)
            version = graph.get("metadata", {}).get("tvm_version") if isinstance(graph, dict) else None
            if isinstance(version, str) and version != tvm.__version__:
                graph = json.loads(json_compact.upgrade_json(json.dumps(graph)))
        except GraphRefused:
            raise
        except (ValueError, RecursionError) as error:
            raise GraphRefused(f"it is no JSON: {str(error)[:200]}") from error
        except Exception as error:  # TVM's upgrade expects what TVM writes
            raise GraphRefused(f"TVM can't bring it up to date ({type(error).__name__})") from error
        nodes = graph.get("nodes") if isinstance(graph, dict) else None
        if not isinstance(nodes, list) or not all(map(_is_node, nodes)):
            raise GraphRefused("the text has no list of nodes")
        root = graph.get("root_index")
        if type(root) is not int or not 0 <= root < len(nodes):
            raise GraphRefused("root_index names none of the nodes")
        return cls(nodes, root)

    @classmethod
    def of(cls, value: Any) -> ObjectGraph:
        """Return the graph of an object in this process."""
        graph = json.loads(tvm.ir.save_json(value))
        return cls(graph["nodes"], graph["root_index"])

    def named(self) -> frozenset[Named]:
        """Return the kinds of objects, and the names that they use in calls, annotations and storage scopes.

        Serial loops are left out, because every program has them. Raises GraphRefused.
        """
        return frozenset(self._named())

    def check(self) -> None:
        """Check every object against TVM's reflection of its class. Raises GraphRefused.

        The graph's depth, and its size as a tree, are limited to what TVM can visit.
        """
        sizes: list[int] = []
        depths: list[int] = []
        for number, node in enumerate(self.nodes):
            children = list(self._children(number, node))
            sizes.append(1 + sum(sizes[child] for child, is_walked in children if is_walked))
            depths.append(1 + max((depths[child] for child, _ in children), default=0))
            if depths[-1] > MAX_DEPTH or sizes[-1] > MAX_TREE_NODES:
                raise GraphRefused("its objects are nested too deeply, or shared too often")

    def load(self) -> Any:
        """Return the objects. Raises GraphRefused or any exception of TVM's."""
        self.check()
        metadata = {"tvm_version": tvm.__version__}
        text = json.dumps({"root_index": self.root, "nodes": self.nodes, "metadata": metadata})
        return from_json_graph_str(text)

    def _named(self) -> Iterator[Named]:
        for node in self.nodes:
            kind, data = node["type"], node.get("data", ())
            yield Part.KIND, kind
            try:
                match kind:
                    case "ir.Op":
                        yield Part.OPERATOR, str(data)
                    case "ir.StringImm":
                        yield Part.TEXT, self._text(data["value"])
                    case "ir.DictAttrs":
                        yield from ((Part.ATTRIBUTE, key) for key in self._keys(data["__dict__"]))
                    case "s_tir.SBlock" | "tirx.For" | "tirx.AllocBuffer":
                        yield from ((Part.ANNOTATION, key) for key in self._keys(data["annotations"]))
                    case "tirx.AttrStmt":
                        yield Part.ANNOTATION, self._text(data["attr_key"])
                    case "tirx.BufferType":
                        yield Part.SCOPE, self._text(data["storage_scope"])
                    case "tirx.IterVar":
                        yield Part.THREAD, self._text(data["thread_tag"])
                if kind == "tirx.For" and data["kind"] != 0:
                    yield Part.LOOP, LOOPS[max(data["kind"], 0)]
            except (LookupError, TypeError) as error:
                raise GraphRefused(f"a {kind} of it can't be read") from error

    def _text(self, number: int) -> str:
        return str(self.nodes[number]["data"])

    def _keys(self, number: int) -> Iterator[str]:
        if self.nodes[number]["type"] == "ffi.Map":
            yield from map(self._text, self.nodes[number]["data"][::2])

    def _children(self, number: int, node: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
        """Yield (node, whether TVM's visitors continue to it) for the nodes that a node refers to."""
        kind = node["type"]
        if kind in _PLAIN:
            if not _PLAIN[kind](node.get("data")):
                raise GraphRefused(f"it has a {kind} of another value")
        elif kind in ("ffi.Array", "ffi.Map"):
            data = node.get("data")
            if not isinstance(data, list) or (kind == "ffi.Map" and len(data) % 2):
                raise GraphRefused(f"it has a {kind} that is no list")
            for child in data:
                yield self._child(child, number, kind), True
        else:
            fields, data = _fields(kind), node.get("data")
            if not isinstance(data, dict) or data.keys() != fields.keys():
                raise GraphRefused(f"it has a {kind} with other fields than TVM's")
            for name, schema in fields.items():
                inline = _INLINE.get(schema.get("type", ""))
                if inline is None:
                    child = self._child(data[name], number, f"{kind}.{name}")
                    if not self._fits(child, schema) and not self._may_be_null(child, kind, name):
                        raise GraphRefused(f"the {name} of a {kind} is of another kind")
                    yield child, name not in ("ty", "span")
                elif not inline(data[name]):
                    raise GraphRefused(f"the {name} of a {kind} has another value")

    def _child(self, value: Any, before: int, what: str) -> int:
        if type(value) is not int or not 0 <= value < before:
            raise GraphRefused(f"{what} refers to a node that is later or missing")
        return value

    def _may_be_null(self, child: int, kind: str, name: str) -> bool:
        return self.nodes[child]["type"] == "None" and (name == "span" or f"{kind}.{name}" in _NULLABLE)

    def _fits(self, number: int, schema: Mapping[str, Any]) -> bool:
        """Return whether a node matches TVM's schema of a field."""
        wanted, arguments = schema.get("type"), schema.get("args", ())
        node = self.nodes[number]
        kind, data = node["type"], node.get("data", ())
        match wanted:
            case "Any":
                return True
            case "Optional":
                return kind == "None" or self._fits(number, arguments[0])
            case "ffi.BigInt":
                return bool(kind == "int")
            case "ffi.Array":
                items = arguments[0] if arguments else _ANY
                return kind == wanted and all(self._fits(child, items) for child in data)
            case "ffi.Map":
                keys, values = arguments or (_ANY, _ANY)
                pairs = zip(data[::2], data[1::2], strict=True) if kind == wanted else ()
                return kind == wanted and all(self._fits(k, keys) and self._fits(v, values) for k, v in pairs)
        return wanted in _lineage(kind)


_ANY: Mapping[str, Any] = {"type": "Any"}


def _is_integer(data: Any) -> bool:
    return type(data) is int and abs(data) <= MAX_INTEGER


def _is_text(data: Any) -> bool:
    return isinstance(data, str)


def _is_float(data: Any) -> bool:
    """Return whether TVM reads it as a float. A maximum begins with an infinity."""
    return type(data) in (int, float) and (math.isfinite(data) or type(data) is float)


# Objects without fields, each with a test of its content.
_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "None": lambda data: data is None,
    "bool": lambda data: isinstance(data, bool),
    "int": _is_integer,
    "float": _is_float,
    "DataType": _is_text,
    "ffi.String": _is_text,
    "ffi.Tensor": _is_text,
    "ffi.Shape": lambda data: isinstance(data, list) and all(map(_is_integer, data)),
    # Objects that are identified by their names.
    "ir.Op": _is_text,
    "ir.SourceName": _is_text,
    "tirx.Axis": _is_text,
}
# Fields with inline values, each with a test of the value.
_INLINE: Mapping[str, Callable[[Any], bool]] = {
    "int": _is_integer,
    "bool": lambda data: isinstance(data, bool),
    "float": _is_float,
    "DataType": _is_text,
}


def _is_node(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("type"), str) and node.keys() <= {"type", "data"}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise GraphRefused("it has a key twice")
    return found


@functools.cache
def _fields(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of a TVM class and their allowed values. Raises GraphRefused."""
    fields: dict[str, Mapping[str, Any]] = {}
    for info in _classes(kind):
        for one in info.fields or ():
            fields.setdefault(one.name, json.loads(one.metadata["type_schema"]))
    return fields


@functools.cache
def _lineage(kind: str) -> frozenset[str]:
    """Return the names of a TVM class and of its base classes."""
    return frozenset(info.type_key for info in _classes(kind)) if "." in kind else frozenset((kind,))


def _classes(kind: str) -> Iterator[Any]:
    try:
        info: Any = core._lookup_or_register_type_info_from_type_key(kind)
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise GraphRefused(f"TVM knows no {kind[:64]}") from error
    while info is not None:
        yield info
        info = info.parent_type_info
