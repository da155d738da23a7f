"""Let operators that only move elements read computed values instead of copies by other such operators.

TVM fuses a chain of such operators, views, into one kernel if each has one reader. A view with several
readers, as in attention, becomes a copy in memory.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import rewrite_functions, static_shape

VIEWS = {f"relax.{name}" for name in ("expand_dims", "permute_dims", "reshape", "squeeze", "strided_slice")}


def read_through_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Give each view its own copies of the views that it reads, up to a computed value. Splits, and `take` at
    one constant index of a view, become slices.

        lv = permute_dims(x, axes=[2, 0, 1])
        q = take(lv, 0, axis=0)
        k = take(lv, 1, axis=0)
    ->
        q = squeeze(strided_slice(permute_dims(x, axes=[2, 0, 1]), [0], [0], [1]), axis=[0])
        k = squeeze(strided_slice(permute_dims(x, axes=[2, 0, 1]), [0], [1], [2]), axis=[0])
    """
    return rewrite_functions(mod, lambda function: _Reader(mod).visit_expr(function))


def view_reshaped(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace kernels of `main` that only reshape by reshapes, which need no kernel: the result is where the
    input is. Outputs and copies of buffers that are written in place stay kernels. Run this after FuseOps, so
    that no group contains a reshape.

        lv = call_tir(softmax, (x,))
        lv1 = call_tir(reshape, (lv,))
    ->
        lv = call_tir(softmax, (x,))
        lv1 = reshape(lv, (1, 4, 256, 256))
    """
    main = relax.transform.CanonicalizeBindings()(mod)["main"]
    values = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    result = values.get(main.body.body, main.body.body)
    outputs = {main.body.body, *(result.fields if isinstance(result, relax.Tuple) else ())}
    copies = [values[output] for output in outputs if output in values]
    buffers = {call.args[1].fields[0] for call in values.values() if _name(call) == "relax.call_tir_inplace"}
    functions = {
        name: _Viewer(mod, copies, buffers).visit_expr(main) if name.name_hint == "main" else function
        for name, function in mod.functions_items()
    }
    viewed = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(viewed)


@relax.expr_functor.mutator
class _Reader(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if _is_view(call):
            return Call(call.op, [self._own_copy(call.args[0]), *call.args[1:]], call.attrs)
        return self._taken(call) if _name(call) == "relax.take" else call

    def visit_tuple_getitem_(self, op: relax.TupleGetItem) -> relax.Expr:
        item = self.visit_expr_post_order(op)
        split = self._definition(item.tuple_value)
        shape = static_shape(op) if _name(split) == "relax.split" else None
        if shape is None:
            return item
        axis = int(split.attrs.axis) % len(shape)
        before = [static_shape(relax.Var("part", field)) for field in split.ty.fields[: item.index]]
        start = sum(part[axis] for part in before if part is not None)
        return self._slice(split.args[0], axis, start, start + shape[axis])

    def _taken(self, call: Call) -> relax.Expr:
        """Return a `take` at one constant index as a slice; return any other call unchanged."""
        data, place = call.args
        shape = static_shape(data)
        is_one = isinstance(place, GenericConst) and not place.value.numpy().ndim
        if not is_one or not _is_view(self._definition(data)) or shape is None or call.attrs.axis is None:
            return call
        axis = int(call.attrs.axis) % len(shape)
        start = min(max(int(place.value.numpy()), 0), shape[axis] - 1)
        taken = self.builder_.emit(self._slice(data, axis, start, start + 1))
        return self.builder_.normalize(relax.op.squeeze(taken, [axis]))

    def _slice(self, data: relax.Expr, axis: int, start: int, end: int) -> relax.Expr:
        return self.builder_.normalize(relax.op.strided_slice(self._own_copy(data), [axis], [start], [end]))

    def _own_copy(self, value: relax.Expr) -> relax.Expr:
        """Emit copies of the views that `value` is read through. Unused ones are removed later."""
        view = self._definition(value)
        if not _is_view(view):
            return value
        return self.builder_.emit(Call(view.op, [self._own_copy(view.args[0]), *view.args[1:]], view.attrs))

    def _definition(self, value: relax.Expr) -> Any:
        return self.lookup_binding(value) if isinstance(value, relax.Var) else None


@relax.expr_functor.mutator
class _Viewer(relax.PyExprMutator):
    """Replaces calls of functions that reshape, except `copies` and those that read one of `buffers`."""

    def __init__(
        self, mod: tvm.IRModule, copies: Sequence[relax.Expr], buffers: Container[relax.Expr]
    ) -> None:
        super().__init__(mod)
        self._mod, self._copies, self._buffers = mod, copies, buffers

    def visit_call_(self, op: Call) -> relax.Expr:
        shape = static_shape(op)
        if _name(op) != "relax.call_tir" or shape is None or any(op.same_as(copy) for copy in self._copies):
            return op
        if not relax.analysis.has_reshape_pattern(self._mod[op.args[0]]):
            return op
        (source,) = op.args[1].fields
        size = math.prod(static_shape(source) or ())
        # The first rows of a tensor also have their places in memory, but a reshape keeps all rows.
        if source in self._buffers or size != math.prod(shape):
            return op
        return relax.op.reshape(self.visit_expr(source), shape)


def _name(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))


def _is_view(expr: Any) -> bool:
    return _name(expr) in VIEWS
