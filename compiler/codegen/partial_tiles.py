"""Compute full tiles without the conditions of the last, partial one.

Where tiles don't divide an axis, rows of register tiles have conditions. LLVM moves only some of them out of
the loop along the reduction.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Var
from tvm.tirx import BufferStore, For, IfThenElse, PrimFunc

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body, with_distinct_variables, with_loop_body
from compiler.tir_nodes import conjunction, contains, find_all, reads_itself
from search.cost.border_tiles import MAX_SUMS


def split_full_tiles(module: tvm.IRModule) -> tvm.IRModule:
    """Check the conditions of sums outside of all loops that don't change them.

        for i in range(4):
            for k in range(64):
                c[0] = c[0] + a[2 * i, k] * b[k]
                if i < 3: c[1] = c[1] + a[2 * i + 1, k] * b[k]
    ->
        for i in range(4):
            if i < 3:
                for k in range(64):
                    c[0] = c[0] + a[2 * i, k] * b[k]
                    c[1] = c[1] + a[2 * i + 1, k] * b[k]
            else:
                for k in range(64):
                    c[0] = c[0] + a[2 * i, k] * b[k]
                    if i < 3: c[1] = c[1] + a[2 * i + 1, k] * b[k]

    Loops with more than MAX_SUMS such sums stay, because LLVM takes seconds for them.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    if not _conditional_sums(function.body):
        return function
    checks = [(loop, _checks(loop.body)) for loop in find_all(function.body, For)]
    checked = [(loop, found) for loop, found in checks if found]
    inner = [one for loop, _ in checked for one in find_all(loop.body, For)]
    outermost = [(loop, found) for loop, found in checked if not contains(inner, loop)]
    if not outermost:
        return function

    def split(loop: For) -> For:
        for one, found in outermost:
            if loop.same_as(one):
                body = IfThenElse(conjunction(found), _without(loop.body, found), loop.body)
                return with_loop_body(loop, body)
        return loop

    body = tvm_ffi.structural_map(function.body, (For, split))
    return with_distinct_variables(with_body(function, body))


def _checks(body: Any) -> list[Any]:
    """Return the different conditions of sums in a loop's body that no loop inside changes."""
    conditional = _conditional_sums(body)
    variables = [each.loop_var for each in find_all(body, For)]
    is_repeated = len(conditional) > 1 or variables
    if not is_repeated or len(conditional) > MAX_SUMS:
        return []
    found = {
        tvm_ffi.StructuralKey(each.condition): each.condition
        for each in conditional
        if not any(contains(variables, variable) for variable in find_all(each.condition, Var))
    }
    return list(found.values())


def _conditional_sums(body: Any) -> list[IfThenElse]:
    return [
        each
        for each in find_all(body, IfThenElse)
        if each.else_case is None and any(map(reads_itself, find_all(each.then_case, BufferStore)))
    ]


def _without(body: Any, conditions: list[Any]) -> Any:
    """Return a body without these conditions."""
    held = {tvm_ffi.StructuralKey(condition) for condition in conditions}

    def unconditional(statement: IfThenElse) -> Any:
        is_held = statement.else_case is None and tvm_ffi.StructuralKey(statement.condition) in held
        return statement.then_case if is_held else statement

    return tvm_ffi.structural_map(body, (IfThenElse, unconditional))
