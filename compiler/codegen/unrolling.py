"""Unroll only as far as accumulators stay in registers, on x86.

Two kinds of unrolling run slowly, and compile slowly. If a loop over results is unrolled around a reduction,
LLVM keeps the operands that its copies share in registers, and stores the accumulators. And the product
`vfmadd213ps` overwrites a factor that isn't used again, so the accumulator moves to another register. If LLVM
joins two iterations, it needs twice the registers, so it stores and reloads accumulators in every iteration.
In a loop of one iteration it chooses `vfmadd231ps`, which adds in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm, TensorLoad
from tvm.s_tir import SBlockRealize
from tvm.tirx import AttrStmt, BufferStore, Evaluate, For, ForKind, IntImm, IterVar, PrimFunc, SeqStmt, Var

from compiler.codegen.rewrite import rewrite_prim_funcs, with_loop_body
from compiler.target import is_x86, target_features
from compiler.tir_nodes import contains, find_all, num_bytes

# The longest unrolled reduction, in instructions.
MAX_INSTRUCTIONS = 128
# The longest reduction, in instructions, that LLVM unrolls completely.
COMPLETELY_UNROLLED = 64
# The registers of a product's operands.
OPERANDS = 2
MAX_STEPS = "pragma_auto_unroll_max_step"

_NAME = "tunefarm_keep_rolled"
# LLVM doesn't copy this call, so it doesn't unroll the loop around it. The call has no instruction.
_FUNCTION = f"""
declare void @llvm.sideeffect()
define linkonce_odr hidden i32 @{_NAME}() alwaysinline nounwind {{
  call void @llvm.sideeffect() noduplicate
  ret i32 0
}}
"""


@dataclass(frozen=True)
class _Registers:
    """The vector registers of a processor."""

    count: int
    width_bytes: int

    @classmethod
    def of(cls, target: tvm.target.Target) -> _Registers:
        features = target_features(target)
        return cls(32, 64) if "avx512f" in features else cls(16, 32 if "avx" in features else 16)

    def fits(self, accumulators: int) -> bool:
        return accumulators <= self.count - OPERANDS

    def holding(self, size_bytes: int) -> int:
        return -(-size_bytes // self.width_bytes)


def limit_unrolling(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower the limit of steps that TVM unrolls, for the reductions of scheduled functions.

        for i0 in range(64):                                    # unrolls up to 512 steps
            for k0, i1, k1: for j in T.vectorized(8): C[i, j] += A[i, k] * B[k, j]
    ->
        for i0 in range(64):                                    # unrolls up to 512 steps
            for k0:
                for i1:                                         # unrolls up to the steps of k1
                    for k1: for j in T.vectorized(8): C[i, j] += A[i, k] * B[k, j]

    A loop over results is unrolled if the accumulators of all its iterations fit into the registers. A loop
    over a reduction is unrolled up to MAX_INSTRUCTIONS.
    """
    if target.kind.name != "llvm" or not is_x86(target):
        return module
    registers = _Registers.of(target)

    def limit(function: PrimFunc) -> PrimFunc:
        limits: list[tuple[Any, int]] = []
        for loop in find_all(function.body, For):
            if MAX_STEPS in loop.annotations:
                limits += _limits(loop, registers)
        if not limits:
            return function

        def annotate(loop: For) -> For:
            steps = next((steps for variable, steps in limits if variable.same_as(loop.loop_var)), None)
            return loop if steps is None else _with_limit(loop, steps)

        return function.with_body(tvm_ffi.structural_map(function.body, (For, annotate)))

    return rewrite_prim_funcs(module, limit)


def keep_rolled(module: tvm.IRModule) -> tvm.IRModule:
    """Mark innermost loops that LLVM mustn't unroll: the registers hold one iteration, but not two.

        for k in range(512):
            c0[0:8] = c0[0:8] + broadcast(a[k]) * b[k * 8 : k * 8 + 8]
            ...                                                             # seven more
    ->
        for k in range(512):
            c0[0:8] = c0[0:8] + broadcast(a[k]) * b[k * 8 : k * 8 + 8]
            ...
            keep_rolled()
    """
    return rewrite_prim_funcs(module, _mark_loops)


def _limits(annotated: For, registers: _Registers) -> Iterator[tuple[Any, int]]:
    """Yield for each reduction the variable of the innermost loop that must not be unrolled, and the steps
    inside that loop; nothing if the annotated limit excludes the loop anyway.
    """
    for loops, realize in _nests(annotated.body, []):
        store = realize.block.body
        reduced = [
            value
            for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
            if variable.iter_type == IterVar.CommReduce
        ]
        if not reduced or not isinstance(store, BufferStore):
            continue
        variables = [variable for value in reduced for variable in find_all(value, Var)]
        steps, instructions, accumulators = 1, 0, 0
        vector_bytes = tvm.DataType(str(store.value.ty.dtype)).bits // 8
        for loop in reversed(loops):
            if not isinstance(loop.extent, IntImm):
                break
            extent = int(loop.extent)
            if loop.kind == ForKind.VECTORIZED:
                vector_bytes *= extent
                continue
            instructions = instructions or registers.holding(vector_bytes)
            accumulators = accumulators or instructions
            is_reduced = contains(variables, loop.loop_var)
            if loop.kind == ForKind.SERIAL and extent > 1:
                if is_reduced:
                    grows = instructions * extent <= MAX_INSTRUCTIONS
                else:
                    grows = instructions == accumulators or registers.fits(accumulators * extent)
                if steps * extent > int(annotated.annotations[MAX_STEPS]):
                    break
                if not grows:
                    yield loop.loop_var, steps
                    break
            elif loop.kind == ForKind.PARALLEL:
                break
            steps, instructions = steps * extent, instructions * extent
            if not is_reduced:
                accumulators *= extent


def _nests(statement: Any, loops: list[For]) -> Iterator[tuple[list[For], SBlockRealize]]:
    """Yield every block without blocks inside, with the loops around it, outer ones first."""
    if isinstance(statement, For):
        yield from _nests(statement.body, [*loops, statement])
    elif isinstance(statement, SeqStmt):
        for each in statement.seq:
            yield from _nests(each, loops)
    elif isinstance(statement, SBlockRealize):
        if find_all(statement.block.body, SBlockRealize):
            yield from _nests(statement.block.body, loops)
        else:
            yield loops, statement


def _with_limit(loop: For, steps: int) -> For:
    annotations = {**loop.annotations, MAX_STEPS: steps, "pragma_unroll_explicit": 1}
    return For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        loop.body,
        loop.thread_binding,
        annotations,
        loop.step,
    )


def _mark_loops(function: PrimFunc) -> PrimFunc:
    target = function.attrs.get("target")
    if target is None or not is_x86(target):
        return function
    registers = _Registers.of(target)

    def mark(loop: For) -> For:
        if loop.kind != ForKind.SERIAL or find_all(loop.body, For) or not _needs_mark(loop, registers):
            return loop
        statements = loop.body.seq if isinstance(loop.body, SeqStmt) else [loop.body]
        return with_loop_body(loop, SeqStmt([*statements, Evaluate(tirx.call_extern("int32", _NAME))]))

    body = tvm_ffi.structural_map(function.body, (For, mark))
    if body.same_as(function.body):
        return function
    return function.with_body(AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_FUNCTION), body))


def _needs_mark(loop: For, registers: _Registers) -> bool:
    """Return whether the registers hold one iteration's accumulators and operands, but not the
    accumulators of two, and most products are the last to use a factor, so they overwrite it. LLVM unrolls
    short loops completely, which does no harm.
    """
    accumulators, uses = 0, []
    stores = find_all(loop.body, BufferStore)
    if len(stores) > registers.count:
        return False
    for store in stores:
        # Vectors of integers are added by instructions that overwrite no operand.
        if "float" not in str(store.value.ty.dtype):
            continue
        if any(contains(find_all(index, Var), loop.loop_var) for index in store.indices):
            continue
        own = tvm_ffi.StructuralKey(tirx.BufferLoad(store.buffer, store.indices))
        loads = {tvm_ffi.StructuralKey(load): load for load in find_all(store.value, TensorLoad)}
        if loads.pop(own, None) is not None:
            accumulators += registers.holding(num_bytes(store.value))
            uses.append(loads)
    if not registers.count < 2 * accumulators <= 2 * registers.count:
        return False
    if isinstance(loop.extent, IntImm) and accumulators * int(loop.extent) <= COMPLETELY_UNROLLED:
        return False
    last = {key: at for at, loads in enumerate(uses) for key in loads}
    live: dict[Any, int] = {}
    most = overwriting = 0
    for at, loads in enumerate(uses):
        live |= {key: registers.holding(num_bytes(load)) for key, load in loads.items()}
        most = max(most, sum(live.values()))
        used = {key: count for key, count in live.items() if last[key] > at}
        overwriting += len(used) < len(live)
        live = used
    return accumulators + most <= registers.count and 2 * overwriting > len(uses)
