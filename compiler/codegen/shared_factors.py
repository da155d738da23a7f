"""Compute a factor that several sums share once.

A Winograd transform multiplies a tile by one small matrix on each side. Its inner product is written out in
each term, so each of 36 results repeats the inner products of its column. LLVM finds that they are equal, but
takes most of a build for it. TVM's simplifier takes a tenth of a build.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Op, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import EQ, Add, Bind, Broadcast, BufferStore, Cast, FloatImm, IntImm, Mul, PrimFunc, SeqStmt

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs, without_passes
from compiler.tir_nodes import find_all, op_name, statements_of
from search.cost.border_tiles import MAX_SUMS

# TVM's passes for CPUs from the one after loops are unrolled.
_AFTER_UNROLLING = (
    tirx.transform.StmtSimplify(),
    s_tir.transform.RewriteUnsafeSelect(),
    tirx.transform.FP8ComputeLegalize(),
    tirx.transform.VerifyMemory(),
    tirx.transform.AnnotateEntryFunc(),
    tirx.transform.MakePackedAPI(),
    tirx.transform.FP8StorageLegalize(),
)
# TVM simplifies the elements of smaller matrices as fast as they are shared here.
MIN_ELEMENTS = 16
# Stands for an element of a matrix. TVM's passes take it for an instruction of LLVM's and vectorize it.
_ELEMENT = Op.get("tirx.call_llvm_pure_intrin")
# LLVM gives this number to no intrinsic.
NO_INTRINSIC = 0


def lower_shared(module: tvm.IRModule, lower: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    """Lower a module. On CPUs, the factors of transforms are shared before TVM simplifies them: as soon as
    their loops are unrolled.

    `lower` is TVM's pipeline. Transforms that `split_interior` may split are left to `share_factors`.
    """
    matrices = _Matrices()
    written = rewrite_prim_funcs(module, matrices.abbreviate)
    if not matrices.elements:
        return lower(module)
    with without_passes(*(each.info.name for each in _AFTER_UNROLLING)):
        unrolled = lower(written)
    shared = rewrite_prim_funcs(unrolled, matrices.share)
    return tvm.transform.Sequential(_AFTER_UNROLLING)(shared)


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
    return map_body(function, (SeqStmt, _share_terms))


def _share_terms(sequence: SeqStmt) -> SeqStmt:
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


@dataclass(frozen=True)
class _Matrices:
    """The matrices of transforms. A transform computes an element from its place, as a sum of a term for each
    place: Cast("float32", row * 6 + column == 0) + Cast("float32", row * 6 + column == 1) * -1.5 + ...
    """

    elements: list[Mapping[int, float]] = field(default_factory=list)  # other than 0, by their places
    _analyzer: Analyzer = field(default_factory=Analyzer)

    def abbreviate(self, function: PrimFunc) -> PrimFunc:
        """Write each sum of a transform for a CPU as a call with its place."""
        target = function.attrs.get("target")
        if target is None or target.kind.name != "llvm":
            return function

        def visit(store: BufferStore) -> BufferStore:
            factor = _factor(store)
            if factor is None:
                return store
            product = store.value.b
            element = self._abbreviated(product.a)
            if element is product.a:
                return store
            value = Add(store.value.a, Mul(element, self._terms(factor)))
            return BufferStore(store.buffer, value, store.indices)

        return map_body(function, (BufferStore, visit))

    def share(self, function: PrimFunc) -> PrimFunc:
        """Share the factors of a function whose loops are unrolled, and write out the elements."""
        return map_body(map_body(function, (SeqStmt, self._share_unrolled)), (Call, self._expanded))

    def _terms(self, factor: Any) -> Any:
        if isinstance(factor, Add):
            return Add(self._terms(factor.a), self._terms(factor.b))
        return Mul(factor.a, self._abbreviated(factor.b)) if isinstance(factor, Mul) else factor

    def _abbreviated(self, element: Any) -> Any:
        place, elements = _read(element) or (None, {})
        if len(elements) < MIN_ELEMENTS:
            return element
        self.elements.append(elements)
        number = IntImm("int32", len(self.elements) - 1)
        return Call(_ELEMENT, [IntImm("uint32", NO_INTRINSIC), number, place], ret_ty=element.ty)

    def _share_unrolled(self, sequence: SeqStmt) -> SeqStmt:
        statements, factors = [], []
        for statement in statements_of(sequence):
            factor = _factor(statement)
            if factor is not None:
                repeated = statement.value.b.a
                if not isinstance(repeated, Broadcast) or not isinstance(repeated.value, Call):
                    return sequence
                element = self._expanded(repeated.value)
                # TVM's simplifier removes products with zero.
                if isinstance(element, FloatImm) and element.value == 0:
                    continue
                factors.append(factor)
                value = Add(statement.value.a, Mul(Broadcast(element, repeated.lanes), factor))
                statement = BufferStore(statement.buffer, value, statement.indices)
            statements.append(statement)
        if not factors:
            return sequence
        is_conditional = any(op_name(call) == "if_then_else" for call in find_all(factors[0], Call))
        return sequence if is_conditional and len(factors) <= MAX_SUMS else _share_terms(SeqStmt(statements))

    def _expanded(self, call: Call) -> Any:
        """Return the element that a call of `abbreviate` stands for, and any other call itself."""
        if not call.op.same_as(_ELEMENT) or int(_scalar(call.args[0])) != NO_INTRINSIC:
            return call
        elements = self.elements[int(_scalar(call.args[1]))]
        place = self._analyzer.simplify(call.args[2])
        dtype = str(call.ty.dtype)
        if isinstance(place, IntImm):
            return tirx.const(elements.get(int(place), 0.0), dtype)
        terms = [
            Cast(dtype, EQ(place, tirx.const(at, place.ty.dtype))) * tirx.const(value, dtype)
            for at, value in elements.items()
        ]
        return reduce(Add, terms)


def _scalar(operand: Any) -> Any:
    """Return an operand, or the value that all its lanes have."""
    return operand.value if isinstance(operand, Broadcast) else operand


def _read(element: Any) -> tuple[Any, Mapping[int, float]] | None:
    """Return the place and the possible values of a matrix's element; None for any other expression."""
    if isinstance(element, Add):
        first, second = _read(element.a), _read(element.b)
        if first is None or second is None or first[1].keys() & second[1].keys():
            return None
        return (
            (first[0], {**first[1], **second[1]}) if tvm_ffi.structural_equal(first[0], second[0]) else None
        )
    is_weighted = isinstance(element, Mul) and isinstance(element.b, FloatImm)
    chosen, value = (element.a, element.b.value) if is_weighted else (element, 1.0)
    if not isinstance(chosen, Cast) or str(chosen.ty.dtype) != "float32":
        return None
    condition = chosen.value
    is_place = isinstance(condition, EQ) and isinstance(condition.b, IntImm)
    return (condition.a, {int(condition.b): value}) if is_place else None
