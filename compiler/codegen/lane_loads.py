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
from tvm.ir import Call, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import Broadcast, BufferStore, For, ForKind, IntImm, PrimFunc, Ramp, SeqStmt, Shuffle, Var

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.target import is_arm
from compiler.tir_nodes import find_all, num_bits, num_bytes, num_lanes, op_name, step_of

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

    A scalar may also be the four bytes that a dot product reads as an int32. Sums keep their order. A loop
    stays if its accumulators and operands don't fit into the registers.
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
        scalar
        for scalar in _distinct(
            each.value
            for store in stores
            for each in find_all(store.value, Broadcast)
            if _loaded(each.value) is not None
        )
        if _moves_on(scalar, loop.loop_var, analyzer)
    ]
    if not scalars:
        return loop
    lanes = VECTOR_BYTES // num_bytes(scalars[0])
    if int(loop.extent) % lanes or any(num_bytes(each) * lanes != VECTOR_BYTES for each in scalars):
        return loop
    if _registers(stores, [_loaded(each) for each in scalars]) + len(scalars) > REGISTERS:
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
        value, load = broadcast.value, _loaded(broadcast.value)
        if load is None or tvm_ffi.StructuralKey(value) not in scalars:
            return broadcast
        *outer, last = load.indices
        start, each = (last.base, int(last.lanes)) if isinstance(last, Ramp) else (last, 1)
        ramp = Ramp(at(start, first), tirx.const(1, start.ty.dtype), each * lanes)
        vector = tirx.BufferLoad(load.source, [*(at(one, first) for one in outer), ramp])
        if value is not load:
            vector = tirx.reinterpret(f"{value.ty.dtype}x{lanes}", vector)
        return Broadcast(Shuffle([vector], [tirx.const(lane, "int32")]), broadcast.lanes)

    return at(tvm_ffi.structural_map(store, (Broadcast, from_lane)), first + lane)


def _loaded(value: Any) -> TensorLoad | None:
    """Return the load of a scalar, or of adjacent elements that are reinterpreted as one."""
    if isinstance(value, Call) and op_name(value) == "reinterpret" and num_lanes(value) == 1:
        value = value.args[0]
        return value if isinstance(value, TensorLoad) and isinstance(value.indices[-1], Ramp) else None
    return value if isinstance(value, TensorLoad) and not isinstance(value.indices[-1], Ramp) else None


def _registers(stores: Sequence[BufferStore], scalars: Sequence[Any]) -> int:
    """Return the vector registers of a step's accumulators and vectors, without loads of `scalars`."""
    read = {tvm_ffi.StructuralKey(each) for each in scalars}
    loads = _distinct(
        load
        for store in stores
        for load in find_all(store.value, TensorLoad)
        if isinstance(load.indices[-1], Ramp)
        and not load.source.same_as(store.buffer)
        and tvm_ffi.StructuralKey(load) not in read
    )
    types = [each.value.ty.dtype for each in stores] + [each.ty.dtype for each in loads]
    return sum(-(-num_bits(dtype) // (8 * VECTOR_BYTES)) for dtype in types)


def _moves_on(scalar: Any, variable: Any, analyzer: Analyzer) -> bool:
    """Return whether a step of a loop loads what lies right behind the elements of the step before."""
    load = _loaded(scalar)
    assert load is not None
    *outer, last = load.indices
    start, each = (last.base, int(last.lanes)) if isinstance(last, Ramp) else (last, 1)
    if isinstance(last, Ramp) and not (isinstance(last.stride, IntImm) and int(last.stride) == 1):
        return False
    if any(_uses(one, variable) for one in outer):
        return False
    return step_of(start, variable, analyzer) == each


def _uses(expr: Any, variable: Any) -> bool:
    return any(each.same_as(variable) for each in find_all(expr, Var))


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({tvm_ffi.StructuralKey(value): value for value in values}.values())
