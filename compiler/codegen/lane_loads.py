"""Load the scalars of consecutive steps as one vector, for processors that multiply by a lane of a vector.

Arm's `fmla` multiplies by any lane of a register, but doesn't read memory. Four scalars in one load also mean
a quarter of a loop's other instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import Broadcast, BufferStore, For, ForKind, IntImm, PrimFunc, Ramp, SeqStmt, Shuffle, Var

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.target import is_arm
from compiler.tir_nodes import find_all

VECTOR_BYTES = 16
REGISTERS = 32


def load_lanes(module: tvm.IRModule) -> tvm.IRModule:
    """Join the loads of scalars in innermost loops that accumulate, on Arm.

        for k in range(512):
            c[0:4] = c[0:4] + broadcast(a[k]) * b[k * 4 : k * 4 + 4]
    ->
        for k in range(128):
            c[0:4] = c[0:4] + broadcast(shuffle(a[k * 4 : k * 4 + 4], [0])) * b[k * 16 : k * 16 + 4]
            ...
            c[0:4] = c[0:4] + broadcast(shuffle(a[k * 4 : k * 4 + 4], [3])) * b[k * 16 + 12 : k * 16 + 16]

    Sums keep their order. A loop stays if its accumulators and operands don't fit into the registers.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    target = function.attrs.get("target")
    if target is None or not is_arm(target):
        return function
    return map_body(function, (For, _joined))


def _joined(loop: For) -> For:
    """Return the loop with joined loads, or the loop itself."""
    stores = loop.body.seq if isinstance(loop.body, SeqStmt) else [loop.body]
    if loop.kind != ForKind.SERIAL or not all(isinstance(each, BufferStore) for each in stores):
        return loop
    if not isinstance(loop.extent, IntImm) or not isinstance(loop.min, IntImm) or int(loop.min):
        return loop
    analyzer = Analyzer()
    scalars = [
        load
        for load in _distinct(
            each.value
            for store in stores
            for each in find_all(store.value, Broadcast)
            if isinstance(each.value, TensorLoad)
        )
        if _moves_by_one(load, loop.loop_var, analyzer)
    ]
    if not scalars:
        return loop
    lanes = VECTOR_BYTES // _item_bytes(scalars[0])
    if int(loop.extent) % lanes or any(_item_bytes(each) * lanes != VECTOR_BYTES for each in scalars):
        return loop
    if _registers(stores) + len(scalars) > REGISTERS:
        return loop
    counter = Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    keys = {tvm_ffi.StructuralKey(each) for each in scalars}
    steps = [
        _step(store, keys, loop.loop_var, counter, lanes, lane) for lane in range(lanes) for store in stores
    ]
    extent = tirx.const(int(loop.extent) // lanes, loop.extent.ty.dtype)
    return For(counter, loop.min, extent, loop.kind, SeqStmt(steps), annotations=loop.annotations)


def _step(
    store: BufferStore, scalars: Collection[Any], before: Any, counter: Any, lanes: int, lane: int
) -> BufferStore:
    """Return a store of one of the `lanes` steps of a new iteration. `scalars` has the joined loads' keys."""
    first = counter * lanes

    def at(expr: Any, step: Any) -> Any:
        return tvm_ffi.structural_map(expr, (Var, lambda each: step if each.same_as(before) else each))

    def from_lane(broadcast: Broadcast) -> Any:
        load = broadcast.value
        if not isinstance(load, TensorLoad) or tvm_ffi.StructuralKey(load) not in scalars:
            return broadcast
        *outer, last = load.indices
        ramp = Ramp(at(last, first), tirx.const(1, last.ty.dtype), lanes)
        vector = tirx.BufferLoad(load.source, [*(at(each, first) for each in outer), ramp])
        return Broadcast(Shuffle([vector], [tirx.const(lane, "int32")]), broadcast.lanes)

    return at(tvm_ffi.structural_map(store, (Broadcast, from_lane)), first + lane)


def _registers(stores: Sequence[BufferStore]) -> int:
    """Return the vector registers of the accumulators and of the vectors that a step loads."""
    loads = _distinct(
        load
        for store in stores
        for load in find_all(store.value, TensorLoad)
        if isinstance(load.indices[-1], Ramp) and not load.source.same_as(store.buffer)
    )
    types = [each.value.ty.dtype for each in stores] + [each.ty.dtype for each in loads]
    return sum(-(-_bits(dtype) // (8 * VECTOR_BYTES)) for dtype in types)


def _moves_by_one(load: TensorLoad, variable: Any, analyzer: Analyzer) -> bool:
    """Return whether each step of a loop loads the next element."""
    *outer, last = load.indices
    if isinstance(last, Ramp) or any(_uses(each, variable) for each in outer):
        return False
    following = tvm_ffi.structural_map(last, (Var, lambda each: each + 1 if each.same_as(variable) else each))
    step = analyzer.simplify(following - last)
    return isinstance(step, IntImm) and int(step) == 1


def _uses(expr: Any, variable: Any) -> bool:
    return any(each.same_as(variable) for each in find_all(expr, Var))


def _distinct(loads: Iterable[TensorLoad]) -> list[TensorLoad]:
    return list({tvm_ffi.StructuralKey(load): load for load in loads}.values())


def _item_bytes(load: TensorLoad) -> int:
    return -(-tvm.DataType(str(load.source.ty.dtype)).bits // 8)


def _bits(dtype: Any) -> int:
    kind = tvm.DataType(str(dtype))
    return int(kind.bits * kind.lanes)
