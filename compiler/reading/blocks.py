"""One TIR block and the loops around it, read as a node of the search's `Dag`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize

from compiler.reading.indices import IndexReader, find_all
from search.dag import Access, Axis, AxisKind, Node

KINDS = {tirx.IterVar.DataPar: AxisKind.SPATIAL, tirx.IterVar.CommReduce: AxisKind.REDUCTION}
REDUCERS = {tirx.Add: "sum", tirx.Mul: "prod", tirx.Max: "max", tirx.Min: "min"}
ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Max, tirx.Min)
BRANCH_OPS = ("if_then_else",)
# Calls that are one instruction or none.
CHEAP_OPS = ("ceil", "fabs", "floor", "isnan", "likely", "nearbyint", "reinterpret", "round", "trunc")
# Calls that cost as much as many multiplications, and what they are counted as.
EXPENSIVE_FLOPS = 16.0


class UnsupportedSubgraph(Exception):
    """The search has no form for this subgraph; the message says what stands in the way."""


class BlockReader:
    """Reads the block of `realize` under `loops`; the node's axes are these loops, in their order.

    `names` are the buffers' names, by the buffers' variables. Raises UnsupportedSubgraph.
    """

    def __init__(self, realize: SBlockRealize, loops: Sequence[Any], names: Mapping[Any, str]) -> None:
        self.realize = realize
        self.block: SBlock = realize.block
        self.loops = loops
        self.names = names
        self.indices = IndexReader(loops)
        for variable, binding in zip(self.block.iter_vars, realize.iter_values, strict=True):
            self.indices.define(variable.var, self.indices.read(binding), variable.dom)

    def node(self) -> Node:
        self._expect(
            self.block.name_hint != "root", "has the name that TVM gives to what is around all blocks"
        )
        self._expect(not self.block.match_buffers, "sees parts of buffers under other names")
        axes = self._axes()
        values, stores = self._statements(self.block.body)
        writes = tuple(self._write(store) for store in stores)
        written = [write.buffer for write in writes]
        self._expect(bool(written) and len(set(written)) == len(written), "doesn't store one value a buffer")
        is_reduction = any(axis.kind is AxisKind.REDUCTION for axis in axes)
        initial = self._initial_values(writes)
        self._expect(bool(initial) or not is_reduction, "reduces without an initial value")
        self._expect(not initial or is_reduction, "has an initial value but no reduction")
        return Node(
            name=self.block.name_hint,
            axes=axes,
            write=writes[0],
            reads=self._reads([*values, *initial], writes, is_reduction),
            flops=sum(_flops(value, () if is_reduction else _row_variables(stores[0])) for value in values),
            has_branch=not _is_true(self.realize.predicate) or any(map(_has_branch, values)),
            is_expensive=any(_is_expensive(call) for value in values for call in find_all(value, ir.Call)),
            reducer=_reducer(stores, initial) if is_reduction else None,
            extra_writes=writes[1:],
        )

    def _expect(self, holds: bool, what_else: str) -> None:
        if not holds:
            raise UnsupportedSubgraph(f"block {self.block.name_hint} {what_else}")

    def _axes(self) -> tuple[Axis, ...]:
        names = distinct([loop.loop_var.name for loop in self.loops])
        extents = [int(loop.extent) for loop in self.loops]
        kinds = [self._kind(axis, names[axis], extents[axis]) for axis in range(len(names))]
        return tuple(map(Axis, names, extents, kinds))

    def _kind(self, axis: int, name: str, extent: int) -> AxisKind:
        """The kind of the block's variables that a loop moves."""
        pairs = zip(self.block.iter_vars, self.realize.iter_values, strict=True)
        types = {v.iter_type for v, binding in pairs if axis in self.indices.read(binding).axes}
        self._expect(bool(types) or extent == 1, f"doesn't depend on the loop {name} around it")
        known = types <= KINDS.keys() and len(types) < 2
        self._expect(known, f"has a loop {name} that is neither spatial nor a reduction")
        return KINDS[types.pop()] if types else AxisKind.SPATIAL

    def _statements(self, body: Any) -> tuple[list[Any], list[Any]]:
        """The values that a block computes, and its stores."""
        values, stores = [], []
        self._expect(not find_all(body, SBlock), "contains other blocks")
        for statement in body if isinstance(body, tirx.SeqStmt) else [body]:
            self._expect(isinstance(statement, (tirx.Bind, tirx.BufferStore)), "does more than store values")
            values.append(statement.value)
            if isinstance(statement, tirx.Bind):
                self.indices.define(statement.var, self.indices.read(statement.value))
            else:
                stores.append(statement)
        return values, stores

    def _write(self, store: Any) -> Access:
        loads = any(find_all(index, ir.TensorLoad) for index in store.indices)
        self._expect(not loads, "chooses by data where it stores")
        return self._access(store.buffer, store.indices)

    def _initial_values(self, writes: tuple[Access, ...]) -> list[Any]:
        if self.block.init is None:
            return []
        values, stores = self._statements(self.block.init)
        same = [self._access(store.buffer, store.indices) for store in stores] == list(writes)
        self._expect(same, "sets other values at first than those that it reduces")
        return values

    def _reads(self, values: list[Any], writes: tuple[Access, ...], reduces: bool) -> tuple[Access, ...]:
        """What the values load, once each, without a reduction's own accumulators."""
        loads = [load for value in values for load in find_all(value, ir.TensorLoad)]
        reads = dict.fromkeys(self._access(load.source, load.indices) for load in loads)
        own = [read for read in reads if read.buffer in {write.buffer for write in writes}]
        self._expect(not own or (reduces and set(own) <= set(writes)), "reads what it stores")
        return tuple(read for read in reads if read not in own)

    def _access(self, buffer: Any, indices: Any) -> Access:
        self._expect(buffer in self.names, f"uses {buffer.name}, neither an argument nor allocated outside")
        return Access(self.names[buffer], tuple(self.indices.read(index) for index in indices))


def distinct(names: Sequence[str]) -> list[str]:
    """The names with numbers behind those that are taken already."""
    found: list[str] = []
    for name in names:
        candidates: Iterator[str] = (f"{name}{suffix}" for suffix in ("", *range(1, len(names) + 1)))
        found.append(next(candidate for candidate in candidates if candidate not in found))
    return found


def _reducer(stores: Sequence[Any], initial: Sequence[Any]) -> str:
    """The name of `stored = combine(stored, value)` where it begins with the identity: TVM knows no other."""
    if len(stores) != 1:
        return "other"
    (store,), (first,) = stores, initial
    name = REDUCERS.get(type(store.value))
    if name is None or not _combines_itself(store.value.a, store.value.b, store.buffer):
        return "other"
    begins = tvm_ffi.structural_equal(first, _identity(name, str(store.buffer.ty.dtype)))
    return name if begins else "other"


def _combines_itself(a: Any, b: Any, buffer: Any) -> bool:
    """Whether one operand is an element of `buffer` and the other has none."""
    own = [[load.source.same_as(buffer) for load in find_all(side, ir.TensorLoad)] for side in (a, b)]
    return sum(map(sum, own)) == 1 and any(
        isinstance(s, ir.TensorLoad) and all(o) for s, o in zip((a, b), own, strict=True)
    )


def _identity(reducer: str, dtype: str) -> Any:
    match reducer:
        case "max":
            return tirx.min_value(dtype)
        case "min":
            return tirx.max_value(dtype)
    return tirx.const(1 if reducer == "prod" else 0, dtype)


def _flops(value: Any, inner: Collection[Any]) -> float:
    """Arithmetic on the stored value; index arithmetic is inside loads and conditions and not counted, nor
    are calls whose arguments no `inner` variable moves: those are computed once for all of a row."""
    match value:
        case tirx.Select():
            return _flops(value.true_value, inner) + _flops(value.false_value, inner)
        case ir.Call():
            own = EXPENSIVE_FLOPS if _is_expensive(value) else float(_op_name(value) in CHEAP_OPS)
            if _is_expensive(value) and inner and not _mentions(value, inner):
                return 0.0
            arguments = value.args[1:] if _op_name(value) in BRANCH_OPS else value.args
            return own + sum(_flops(argument, inner) for argument in arguments)
        case tirx.Cast():
            return _flops(value.value, inner)
    if isinstance(value, ARITHMETIC):
        return 1.0 + _flops(value.a, inner) + _flops(value.b, inner)
    return 0.0


def _row_variables(store: Any) -> tuple[Any, ...]:
    """Those that move along the rows of the result."""
    return tuple(find_all(store.indices[-1], tirx.Var)) if len(store.indices) else ()


def _mentions(value: Any, variables: Collection[Any]) -> bool:
    return any(found.same_as(variable) for found in find_all(value, tirx.Var) for variable in variables)


def _is_true(predicate: Any) -> bool:
    return isinstance(predicate, tirx.IntImm) and bool(int(predicate))


def _has_branch(value: Any) -> bool:
    return bool(find_all(value, tirx.Select)) or any(
        _op_name(c) in BRANCH_OPS for c in find_all(value, ir.Call)
    )


def _is_expensive(call: Any) -> bool:
    return _op_name(call) not in CHEAP_OPS and _op_name(call) not in BRANCH_OPS


def _op_name(call: Any) -> str:
    """Return the operator's name without its dialect: TVM registers some operators in several."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]
