"""Unroll only as far as it makes a program faster.

Copies of a loop that only copies or finishes results gain nothing from many iterations, and take LLVM most of
a build. LLVM unrolls up to 4096 instructions for some processors.

On x86, two kinds of unrolled sums run slowly. If a loop over results is unrolled around a reduction,
LLVM keeps the operands that its copies share in registers, and stores the accumulators. And the product
`vfmadd213ps` overwrites a factor that isn't used again, so the accumulator moves to another register. If LLVM
joins two iterations, it needs twice the registers, so it stores and reloads accumulators in every iteration.
In a loop of one iteration it chooses `vfmadd231ps`, which adds in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    Add,
    AttrStmt,
    BufferStore,
    Cast,
    Div,
    Evaluate,
    For,
    ForKind,
    IntImm,
    IterVar,
    Max,
    Min,
    Mul,
    PrimFunc,
    Select,
    SeqStmt,
    Sub,
    Var,
)

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body, with_loop_body
from compiler.constants.packing import PACK
from compiler.target import is_x86, target_features
from compiler.tir_nodes import contains, find_all, num_bytes, num_lanes, reads_itself, statements_of

# The longest unrolled loop, in instructions.
MAX_INSTRUCTIONS = 128
# The longest reduction, in instructions, that LLVM unrolls completely.
COMPLETELY_UNROLLED = 64
# The registers of a product's operands.
OPERANDS = 2
MAX_STEPS = "pragma_auto_unroll_max_step"

# The nodes that become instructions.
_OPERATIONS = (Add, Call, Cast, Div, Max, Min, Mul, Select, Sub, TensorLoad)
_PACK = f"__tvm_ffi_{PACK}"
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
    """Lower the limit of steps that TVM unrolls in scheduled functions.

        for i0 in range(64):                                    # unrolls up to 512 steps
            for k0, i1, k1: for j in T.vectorized(8): C[i, j] += A[i, k] * B[k, j]
    ->
        for i0 in range(64):                                    # unrolls up to 512 steps
            for k0:
                for i1:                                         # unrolls up to the steps of k1
                    for k1: for j in T.vectorized(8): C[i, j] += A[i, k] * B[k, j]

    Loops that don't sum are unrolled up to MAX_INSTRUCTIONS. So are, on x86, loops over a reduction. There, a
    loop over results around a reduction is unrolled if the accumulators of all its iterations fit into the
    registers.
    """
    if target.kind.name != "llvm":
        return module

    def limit(function: PrimFunc) -> PrimFunc:
        limits: list[tuple[Any, int]] = []
        for loop in find_all(function.body, For):
            if MAX_STEPS in loop.annotations:
                limits += _limits(loop, target)
        if not limits:
            return function

        def annotate(loop: For) -> For:
            steps = next((steps for variable, steps in limits if variable.same_as(loop.loop_var)), None)
            return loop if steps is None else _with_limit(loop, steps)

        return with_body(function, tvm_ffi.structural_map(function.body, (For, annotate)))

    return rewrite_prim_funcs(module, limit)


def keep_rolled(module: tvm.IRModule) -> tvm.IRModule:
    """Mark loops that LLVM mustn't unroll.

    The registers hold the sums of one iteration, but not of two. Or the loop has no sum, and unrolled, it has
    more than MAX_INSTRUCTIONS. Or it packs constants, which happens once.

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


def _limits(annotated: For, target: tvm.target.Target) -> Iterator[tuple[Any, int]]:
    """Yield the loops that must not be unrolled, by their variables, and the steps inside each.

    They are the innermost such loops around each block. A loop that the annotated limit excludes isn't among
    them.
    """
    registers, most = _Registers.of(target), int(annotated.annotations[MAX_STEPS])
    for loops, realize in _nests(annotated.body, []):
        store = realize.block.body
        if not isinstance(store, BufferStore):
            continue
        reduced = [
            value
            for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
            if variable.iter_type == IterVar.CommReduce
        ]
        if not reduced:
            found = _limit_of_copies(store, loops, registers)
        elif is_x86(target):
            found = _limit_of_sum(store, loops, registers, find_all(reduced, Var))
        else:
            continue
        if found is not None and found[1] * int(found[0].extent) <= most:
            yield found[0].loop_var, found[1]


def _limit_of_copies(store: BufferStore, loops: list[For], registers: _Registers) -> tuple[For, int] | None:
    """Return the innermost loop that makes more than MAX_INSTRUCTIONS of a store, and the steps inside it.

    Return None if no loop does, or if this loop has a reduction inside.
    """
    steps, vector_bytes = 1, num_bytes(store.value)
    operations = 1 + len(find_all(store.value, *_OPERATIONS))
    for loop in reversed(loops):
        if not isinstance(loop.extent, IntImm) or loop.kind == ForKind.PARALLEL or _sums(loop):
            return None
        extent = int(loop.extent)
        if loop.kind == ForKind.VECTORIZED:
            vector_bytes *= extent
            continue
        instructions = operations * registers.holding(vector_bytes) * steps * extent
        if loop.kind == ForKind.SERIAL and extent > 1 and instructions > MAX_INSTRUCTIONS:
            return loop, steps
        steps *= extent
    return None


def _limit_of_sum(
    store: BufferStore, loops: list[For], registers: _Registers, reduced: list[Var]
) -> tuple[For, int] | None:
    """Return the innermost loop around a sum that must not be unrolled, and the steps inside it; None if no
    loop is such. `reduced` are the variables of the reduction's loops.
    """
    steps, instructions, accumulators = 1, 0, 0
    vector_bytes = num_bytes(store.value)
    for loop in reversed(loops):
        if not isinstance(loop.extent, IntImm) or loop.kind == ForKind.PARALLEL:
            return None
        extent = int(loop.extent)
        if loop.kind == ForKind.VECTORIZED:
            vector_bytes *= extent
            continue
        instructions = instructions or registers.holding(vector_bytes)
        accumulators = accumulators or instructions
        is_reduced = contains(reduced, loop.loop_var)
        if loop.kind == ForKind.SERIAL and extent > 1:
            if is_reduced:
                grows = instructions * extent <= MAX_INSTRUCTIONS
            else:
                grows = instructions == accumulators or registers.fits(accumulators * extent)
            if not grows:
                return loop, steps
        steps, instructions = steps * extent, instructions * extent
        if not is_reduced:
            accumulators *= extent
    return None


def _sums(loop: For) -> bool:
    """Return whether a loop of a scheduled function has a reduction inside."""
    axes = [axis for block in find_all(loop.body, SBlock) for axis in block.iter_vars]
    return any(axis.iter_type == IterVar.CommReduce for axis in axes)


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
    if target is None or target.kind.name != "llvm":
        return function
    registers = _Registers.of(target)
    on_x86 = is_x86(target)
    packs = str(function.attrs.get("global_symbol")) == _PACK
    copies = _Copies(registers)

    def mark(loop: For) -> For:
        if loop.kind != ForKind.SERIAL:
            return loop
        is_innermost = not find_all(loop.body, For)
        is_marked = (is_innermost and (packs or (on_x86 and _leaves_registers(loop, registers)))) or (
            copies.of(loop) or 0
        ) > MAX_INSTRUCTIONS
        if not is_marked:
            return loop
        rolled = Evaluate(tirx.call_extern("int32", _NAME))
        return with_loop_body(loop, SeqStmt([*statements_of(loop.body), rolled]))

    body = tvm_ffi.structural_map(function.body, (For, mark))
    if body.same_as(function.body):
        return function
    return with_body(function, AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_FUNCTION), body))


class _Copies:
    """Counts the instructions of statements whose loops are all unrolled. Every loop around a loop asks for
    its count again.
    """

    def __init__(self, registers: _Registers) -> None:
        self._registers = registers
        self._of_loops: dict[For, float | None] = {}

    def of(self, statement: Any) -> float | None:
        """Return about how many instructions a statement has.

        Return None if it sums, has a marked loop, or does anything but store vectors.
        """
        if isinstance(statement, BufferStore):
            return self._of_store(statement)
        if isinstance(statement, SeqStmt):
            total = 0.0
            for each in reversed(statements_of(statement)):  # sums follow their beginnings
                part = self.of(each)
                if part is None:
                    return None
                total += part
            return total
        if not isinstance(statement, For):
            return None
        if statement not in self._of_loops:
            body = self.of(statement.body)
            extent = int(statement.extent) if isinstance(statement.extent, IntImm) else math.inf
            self._of_loops[statement] = None if body is None else body * extent
        return self._of_loops[statement]

    def _of_store(self, store: BufferStore) -> float | None:
        lanes = num_lanes(store.value)
        if lanes == 1 or reads_itself(store):
            return None
        vectors = [each for each in find_all(store.value, *_OPERATIONS) if num_lanes(each) == lanes]
        return (1 + len(vectors)) * self._registers.holding(num_bytes(store.value))


def _leaves_registers(loop: For, registers: _Registers) -> bool:
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
