"""Compute a factor that several sums share once.

A Winograd transform multiplies a tile by one small matrix on each side. Its inner product is written out in
each term, so each of 36 results repeats the inner products of its column. LLVM finds that they are equal, but
takes most of a build for it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import Add, Bind, BufferStore, Mul, PrimFunc, SeqStmt

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.tir_nodes import find_all, statements_of


def share_factors(module: tvm.IRModule) -> tvm.IRModule:
    """Bind each sum that consecutive statements multiply to a variable, where the first sum needs it.

        c[0:8] = c[0:8] + 1.0 * (a[0:8] - 2.0 * a[8:16])
        c[8:16] = c[8:16] + 0.5 * (a[0:8] - 2.0 * a[8:16])
    ->
        factor = a[0:8] - 2.0 * a[8:16]
        c[0:8] = c[0:8] + 1.0 * factor
        c[8:16] = c[8:16] + 0.5 * factor

    A factor that reads a buffer which the statements write isn't shared.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    return map_body(function, (SeqStmt, _share))


def _share(sequence: SeqStmt) -> SeqStmt:
    terms: dict[Any, list[int]] = defaultdict(list)
    each_statement = statements_of(sequence)
    for at, statement in enumerate(each_statement):
        factor = _factor(statement)
        if factor is not None:
            terms[tvm_ffi.StructuralKey(factor)].append(at)
    repeated = {key: places for key, places in terms.items() if len(places) > 1}
    if not repeated:
        return sequence
    written = {store.buffer for store in find_all(sequence, BufferStore)}
    statements: list[list[Any]] = [[statement] for statement in each_statement]
    for places in repeated.values():
        factor = _factor(each_statement[places[0]])
        if any(load.source in written for load in find_all(factor, TensorLoad)):
            continue
        variable = tirx.Var("factor", factor.ty.dtype)
        statements[places[0]].insert(0, Bind(variable, factor))
        for at in places:
            store = statements[at][-1]
            value = Add(store.value.a, Mul(store.value.b.a, variable))
            statements[at][-1] = BufferStore(store.buffer, value, store.indices)
    return SeqStmt([statement for each in statements for statement in each])


def _factor(statement: Any) -> Any:
    """Return the second factor of the product that a statement adds to a buffer; None unless it is a sum."""
    if not isinstance(statement, BufferStore) or not isinstance(statement.value, Add):
        return None
    product = statement.value.b
    return product.b if isinstance(product, Mul) and isinstance(product.b, Add) else None
