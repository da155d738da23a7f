"""Compute tiles that don't touch the border of a padded operand without its conditions.

A padded operand that is read in place has a condition on nearly every load. Most tiles of an image touch no
border, so none of their conditions can fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import GE, GT, LE, LT, And, Bind, BufferStore, For, ForKind, IfThenElse, IntImm, PrimFunc, Var

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body, with_distinct_variables, with_loop_body
from compiler.tir_nodes import conjunction, contains, find_all, op_name, reads_itself, step_of
from search.cost.border_tiles import MAX_SUMS


def split_interior(module: tvm.IRModule) -> tvm.IRModule:
    """Check once for every tile whether its conditions hold.

        for x in range(8):
            c[0] = 0.0
            for k in range(3):
                c[0] = c[0] + T.if_then_else(1 <= x + k, a[x + k - 1], 0.0) * b[k]
    ->
        for x in range(8):
            if x - 1 >= 0:
                c[0] = 0.0
                for k in range(3): c[0] = c[0] + a[x + k - 1] * b[k]
            else:
                c[0] = 0.0
                for k in range(3): c[0] = c[0] + T.if_then_else(1 <= x + k, a[x + k - 1], 0.0) * b[k]

    The tile is the body of the innermost loop that initializes sums and adds conditional values to them.
    Tiles with more than MAX_SUMS such sums stay. Conditions that fail in every tile stay, and one of two that
    no tile satisfies together.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    kinds = _kinds(function.body)  # every loop around a store visits it
    if _StoreKind.CONDITIONAL_SUM not in kinds.values():
        return function
    split: list[Any] = []  # the sums of the tiles that were split

    def visit(loop: For) -> For:
        stores = find_all(loop.body, BufferStore)
        for store in stores:
            if store not in kinds:
                kinds[store] = _kind(store)
        sums = [store for store in stores if kinds[store] is _StoreKind.CONDITIONAL_SUM]
        buffers = [store.buffer for store in sums]
        starts = [store.buffer for store in stores if kinds[store] is _StoreKind.START]
        if not 0 < len(sums) <= MAX_SUMS or any(
            contains(split, one) or not contains(starts, one) for one in buffers
        ):
            return loop
        split.extend(buffers)
        return _split(loop, sums)

    # Inner loops come first.
    body = tvm_ffi.structural_map(function.body, (For, visit))
    if not split:
        return function
    return with_distinct_variables(with_body(function, body))


class _StoreKind(Enum):
    """What a store does: it begins a sum with a value that loads nothing, adds conditional values to a sum,
    or does anything else.
    """

    START = auto()
    CONDITIONAL_SUM = auto()
    OTHER = auto()


def _kinds(body: Any) -> dict[BufferStore, _StoreKind]:
    """Return what each store of a body does."""
    kinds: dict[BufferStore, _StoreKind] = {}
    # Since the last store or factor, also in conditions and indices.
    loads: list[TensorLoad] = []
    calls: list[Call] = []
    conditional: set[Var] = set()  # shared factors with conditions

    def has_condition() -> bool:
        return any(op_name(call) == "if_then_else" for call in calls)

    def bind(factor: Bind) -> None:
        if loads and has_condition():
            conditional.add(factor.var)
        loads.clear()
        calls.clear()

    def see(store: BufferStore) -> None:
        if not loads:
            kinds[store] = _StoreKind.START
        elif has_condition():
            kinds[store] = _kind(store)
        elif conditional and not conditional.isdisjoint(find_all(store.value, Var)) and reads_itself(store):
            kinds[store] = _StoreKind.CONDITIONAL_SUM
        else:
            kinds[store] = _StoreKind.OTHER if find_all(store.value, TensorLoad) else _StoreKind.START
        loads.clear()
        calls.clear()

    tvm_ffi.structural_walk(
        body, [(TensorLoad, loads.append), (Call, calls.append), (Bind, bind), (BufferStore, see)]
    )
    return kinds


def _kind(store: BufferStore) -> _StoreKind:
    if not find_all(store.value, TensorLoad):
        return _StoreKind.START
    has_condition = any(op_name(call) == "if_then_else" for call in find_all(store.value, Call))
    if has_condition and reads_itself(store):
        return _StoreKind.CONDITIONAL_SUM
    return _StoreKind.OTHER


def _split(loop: For, sums: list[BufferStore]) -> For:
    """Return the loop with a body for the tiles in the interior; the loop itself if there are none."""
    inner = {each.loop_var: each for each in find_all(loop.body, For)}
    analyzer = Analyzer()
    held: dict[Any, Any] = {}  # the margins of the interior's conditions
    seen: set[Any] = set()  # an unrolled tile repeats its conditions in every sum
    for part in _conditions(sums):
        key = tvm_ffi.StructuralKey(part)
        if key in seen:
            continue
        seen.add(key)
        margin = _least_margin(part, inner, analyzer)
        sums_of_two = [] if margin is None else [margin, *(margin + other for other in held.values())]
        # A negative sum: no tile satisfies this condition, or this one and another one.
        if sums_of_two and not any(_is_negative(analyzer.simplify(each)) for each in sums_of_two):
            held[key] = margin
    if not held:
        return loop

    def without_conditions(call: Call) -> Any:
        if op_name(call) != "if_then_else":
            return call
        condition, value, otherwise = call.args
        rest = [part for part in _conjuncts(condition) if tvm_ffi.StructuralKey(part) not in held]
        if len(rest) == len(list(_conjuncts(condition))):
            return call
        return tirx.if_then_else(conjunction(rest), value, otherwise) if rest else value

    interior = tvm_ffi.structural_map(loop.body, (Call, without_conditions))
    checks = {tvm_ffi.StructuralKey(margin): margin >= 0 for margin in held.values()}
    body = IfThenElse(conjunction(list(checks.values())), interior, loop.body)
    return with_loop_body(loop, body)


def _conditions(sums: list[BufferStore]) -> Iterator[Any]:
    for store in sums:
        for call in find_all(store.value, Call):
            if op_name(call) == "if_then_else":
                yield from _conjuncts(call.args[0])


def _is_negative(number: Any) -> bool:
    return isinstance(number, IntImm) and int(number) < 0


def _conjuncts(condition: Any) -> Iterator[Any]:
    if isinstance(condition, And):
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    else:
        yield condition


def _least_margin(condition: Any, inner: Mapping[Any, For], analyzer: Analyzer) -> Any:
    """Return an expression that is at least 0 if a comparison holds in all iterations of the `inner` loops;
    None if it isn't affine.
    """
    if isinstance(condition, LE | LT):
        margin = condition.b - condition.a
    elif isinstance(condition, GE | GT):
        margin = condition.a - condition.b
    else:
        return None
    if isinstance(condition, LT | GT):
        margin = margin - 1
    for variable, loop in inner.items():
        step = step_of(margin, variable, analyzer)
        if step is None or loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
            return None
        margin = _at(margin, variable, loop.min if step >= 0 else loop.min + loop.extent - 1)
    return analyzer.simplify(margin)


def _at(expression: Any, variable: Any, value: Any) -> Any:
    return tvm_ffi.structural_map(expression, (Var, lambda each: value if each.same_as(variable) else each))
