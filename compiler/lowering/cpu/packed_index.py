"""Write the index maps of packed operands as TVM does, without TVM's objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import tvm


class PackedIndex:
    """An index of an element: a variable, or arithmetic on one by integers."""

    def __init__(self, kind: str, a: PackedIndex | str, b: int = 0) -> None:
        self.kind = kind
        self.a = a
        self.b = b

    def __floordiv__(self, divisor: int) -> PackedIndex:
        return PackedIndex("prim.FloorDiv", self, divisor)

    def __mod__(self, divisor: int) -> PackedIndex:
        return PackedIndex("prim.FloorMod", self, divisor)


def index_map_text(place: Callable[..., Sequence[PackedIndex]], ndim: int, dtype: str) -> str:
    """Return the JSON of TVM's index map from `ndim` variables `indices_N` to `place(*variables)`.

    (i, j) -> (i // 16, j, i % 16)
    """
    graph = _Graph(dtype)
    variables = [PackedIndex("ir.Var", f"indices_{number}") for number in range(ndim)]
    initial = graph.array(variables)
    final = graph.array(place(*variables))
    fields = {"initial_indices": initial, "final_indices": final, "inverse_index_map": 0}
    root = graph.add("tirx.IndexMap", fields)
    text = {"root_index": root, "nodes": graph.nodes, "metadata": {"tvm_version": tvm.__version__}}
    return json.dumps(text, separators=(",", ":"))


class _Graph:
    """The nodes of an index map: each object once, and each integer once."""

    def __init__(self, dtype: str) -> None:
        self.nodes: list[dict[str, object]] = [
            {"type": "None"},
            {"type": "ir.PrimType", "data": {"span": 0, "dtype": dtype}},
        ]
        self._indices: dict[int, int] = {}
        self._integers: dict[int, int] = {}

    def add(self, kind: str, data: object) -> int:
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def array(self, indices: Sequence[PackedIndex]) -> int:
        return self.add("ffi.Array", [self._index(index) for index in indices])

    def _index(self, index: PackedIndex) -> int:
        if id(index) not in self._indices:
            self._indices[id(index)] = self._written(index)
        return self._indices[id(index)]

    def _written(self, index: PackedIndex) -> int:
        if isinstance(index.a, str):
            return self.add(index.kind, {"span": 0, "ty": 1, "name": self.add("ffi.String", index.a)})
        a = self._index(index.a)
        if index.b not in self._integers:
            self._integers[index.b] = self.add("int", index.b)
        b = self.add("ir.IntImm", {"span": 0, "ty": 1, "value": self._integers[index.b]})
        return self.add(index.kind, {"span": 0, "ty": 1, "a": a, "b": b})
