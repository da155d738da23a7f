"""Read a TIR block and the loops around it as a node of the search's `Dag`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize

from compiler.precision.tf32 import multiplies_rounded, without_rounding
from compiler.reading.indices import IndexReader
from compiler.tir_nodes import find_all, op_name
from core.job import TF32
from search.dag import Axis, AxisKind, BufferAccess, Node

KINDS = {tirx.IterVar.DataPar: AxisKind.SPATIAL, tirx.IterVar.CommReduce: AxisKind.REDUCTION}
REDUCERS = {tirx.Add: "sum", tirx.Mul: "prod", tirx.Max: "max", tirx.Min: "min"}
ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Max, tirx.Min)
BRANCH_OPS = ("if_then_else",)
# Calls that compile to at most one instruction.
CHEAP_OPS = (
    *("ceil", "fabs", "floor", "isnan", "likely", "nearbyint", "reinterpret", "round", "trunc"),
    *("bitwise_and", "shift_right"),
)
# Any other call counts as this many floating-point operations.
EXPENSIVE_FLOPS = 16.0


class UnsupportedSubgraph(Exception):
    """The search can't represent a subgraph. The message names the first thing that it can't represent."""


class BlockReader:
    """Reads the block of `realize` under `loops`; the node's axes are these loops, in their order.

    `names` maps the variables of buffers to their names. Methods raise UnsupportedSubgraph.
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
        is_root = self.block.name_hint == "root"
        self._expect(not is_root, "has the name that TVM gives to the block around all others")
        self._expect(not self.block.match_buffers, "sees parts of buffers under other names")
        axes = self._axes()
        computed, stores = self._statements(self.block.body)
        values = [without_rounding(value) for value in computed]
        for store in stores:
            loads = any(find_all(index, ir.TensorLoad) for index in store.indices)
            self._expect(not loads, "chooses by data where it stores")
        writes = tuple(self._access(store.buffer, store.indices) for store in stores)
        written = [write.buffer for write in writes]
        self._expect(bool(written) and len(set(written)) == len(written), "doesn't store one value a buffer")
        is_reduction = any(axis.kind is AxisKind.REDUCTION for axis in axes)
        initial = self._initial_values(writes)
        self._expect(bool(initial) or not is_reduction, "reduces without an initial value")
        self._expect(not initial or is_reduction, "has an initial value but no reduction")
        # The variables that move along a row of the result.
        row = find_all(stores[0].indices[-1], tirx.Var) if len(stores[0].indices) else []
        predicate = self.realize.predicate
        is_predicated = not (isinstance(predicate, tirx.IntImm) and int(predicate))
        reads = self._reads([*values, *initial], writes, is_reduction)
        return Node(
            name=self.block.name_hint,
            axes=axes,
            write=writes[0],
            reads=reads,
            # Values that read nothing are index arithmetic, or constants that the compiler folds.
            flops=sum(_flops(value, () if is_reduction else row) for value in values) if reads else 0.0,
            has_branch=is_predicated or any(map(_has_branch, values)),
            is_expensive=any(is_expensive(call) for value in values for call in find_all(value, ir.Call)),
            reducer=_reducer(stores, initial) if is_reduction else None,
            extra_writes=writes[1:],
            rounds_to=TF32 if any(map(multiplies_rounded, computed)) else "",
        )

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise UnsupportedSubgraph(f"block {self.block.name_hint} {otherwise}")

    def _axes(self) -> tuple[Axis, ...]:
        """Return an axis for each loop, of the kind of the block's variables that depend on the loop."""
        names = distinct([loop.loop_var.name for loop in self.loops])
        bindings = [
            (variable.iter_type, self.indices.read(binding).axes)
            for variable, binding in zip(self.block.iter_vars, self.realize.iter_values, strict=True)
        ]
        axes = []
        for axis, (name, loop) in enumerate(zip(names, self.loops, strict=True)):
            extent = int(loop.extent)
            kinds = {iter_type for iter_type, used in bindings if axis in used}
            self._expect(bool(kinds) or extent == 1, f"doesn't depend on the loop {name} around it")
            is_known = kinds <= KINDS.keys() and len(kinds) < 2
            self._expect(is_known, f"has a loop {name} that is neither spatial nor a reduction")
            axes.append(Axis(name, extent, KINDS[kinds.pop()] if kinds else AxisKind.SPATIAL))
        return tuple(axes)

    def _statements(self, body: Any) -> tuple[list[Any], list[Any]]:
        """Return the values that a block computes, and its stores."""
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

    def _initial_values(self, writes: tuple[BufferAccess, ...]) -> list[Any]:
        if self.block.init is None:
            return []
        values, stores = self._statements(self.block.init)
        same = [self._access(store.buffer, store.indices) for store in stores] == list(writes)
        self._expect(same, "initializes other elements than those that it reduces")
        return values

    def _reads(
        self, values: list[Any], writes: tuple[BufferAccess, ...], reduces: bool
    ) -> tuple[BufferAccess, ...]:
        """Return the accesses that the values load, each once, without a reduction's accumulators."""
        loads = [load for value in values for load in find_all(value, ir.TensorLoad)]
        reads = dict.fromkeys(self._access(load.source, load.indices) for load in loads)
        own = [read for read in reads if read.buffer in {write.buffer for write in writes}]
        self._expect(not own or (reduces and set(own) <= set(writes)), "reads what it stores")
        return tuple(read for read in reads if read not in own)

    def _access(self, buffer: Any, indices: Any) -> BufferAccess:
        self._expect(buffer in self.names, f"uses {buffer.name}, neither an argument nor allocated outside")
        return BufferAccess(self.names[buffer], tuple(self.indices.read(index) for index in indices))


def distinct(names: Sequence[str]) -> list[str]:
    """Append numbers to names that occur before: [i, i, j] -> [i, i1, j]."""
    found: list[str] = []
    for name in names:
        candidates: Iterator[str] = (f"{name}{suffix}" for suffix in ("", *range(1, len(names) + 1)))
        found.append(next(candidate for candidate in candidates if candidate not in found))
    return found


def _reducer(stores: Sequence[Any], initial: Sequence[Any]) -> str:
    """Return the name of a reduction `stored = combine(stored, value)` that begins with the identity of
    `combine`.

    It is "other" for a reduction that TVM has no name for. `compiler.reducers` names those that begin with
    infinity.
    """
    if len(stores) != 1:
        return "other"
    (store,), (first,) = stores, initial
    name, dtype = REDUCERS.get(type(store.value)), str(store.buffer.ty.dtype)
    if name is None or not _reads_accumulator(store.value.a, store.value.b, store.buffer):
        return "other"
    infinity = [-math.inf, math.inf] if "float" in dtype else []
    match name:
        case "max":
            identities = [tirx.min_value(dtype), *(tirx.FloatImm(dtype, value) for value in infinity[:1])]
        case "min":
            identities = [tirx.max_value(dtype), *(tirx.FloatImm(dtype, value) for value in infinity[1:])]
        case _:
            identities = [tirx.const(1 if name == "prod" else 0, dtype)]
    return name if any(tvm_ffi.structural_equal(first, one) for one in identities) else "other"


def _reads_accumulator(a: Any, b: Any, buffer: Any) -> bool:
    """Return whether one operand is an element of `buffer` and the other contains none."""
    own = [[load.source.same_as(buffer) for load in find_all(side, ir.TensorLoad)] for side in (a, b)]
    return sum(map(sum, own)) == 1 and any(
        isinstance(s, ir.TensorLoad) and all(o) for s, o in zip((a, b), own, strict=True)
    )


def _flops(value: Any, row: Collection[Any]) -> float:
    """Count the floating-point operations of a stored value.

    Index arithmetic in loads and conditions doesn't count. Neither does an expensive call that depends on no
    variable of `row`: it is computed once per row.
    """
    match value:
        case tirx.Select():
            return _flops(value.true_value, row) + _flops(value.false_value, row)
        case ir.Call():
            own = EXPENSIVE_FLOPS if is_expensive(value) else float(op_name(value) in CHEAP_OPS)
            used = find_all(value, tirx.Var)
            is_hoisted = row and not any(one.same_as(variable) for one in used for variable in row)
            if is_expensive(value) and is_hoisted:
                return 0.0
            arguments = value.args[1:] if op_name(value) in BRANCH_OPS else value.args
            return own + sum(_flops(argument, row) for argument in arguments)
        case tirx.Cast():
            return _flops(value.value, row)
    if isinstance(value, ARITHMETIC):
        return 1.0 + _flops(value.a, row) + _flops(value.b, row)
    return 0.0


def _has_branch(value: Any) -> bool:
    return bool(find_all(value, tirx.Select)) or any(
        op_name(c) in BRANCH_OPS for c in find_all(value, ir.Call)
    )


def is_expensive(call: Any) -> bool:
    """Return whether a call computes a function such as exp or tanh."""
    return op_name(call) not in CHEAP_OPS and op_name(call) not in BRANCH_OPS
