"""Let products read the keys and values of a cache, or of grouped heads, where they are stored.

Grouped attention repeats each head of keys and values for several heads of queries. Exporters write the
repetition, transpositions and scales as operators, which would copy the whole cache in each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant, rewrite_functions, static_shape
from compiler.importing.spec import Shape
from compiler.importing.values import numpy_dtype

_Places = NDArray[np.int64]
_RESHAPES = {f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten")}


def share_heads(mod: tvm.IRModule) -> tvm.IRModule:
    """Multiply the queries of a group of heads by the one head of keys or values that they share.

        lv = expand_dims(k, axis=[2])                       # k: Tensor((1, 2, 16, 64))
        lv1 = broadcast_to(lv, (1, 2, 4, 16, 64))
        lv2 = reshape(lv1, (1, 8, 16, 64))
        gv = matmul(q, lv2)                                 # q: Tensor((1, 8, 1, 16))
    ->
        lv = reshape(q, (1, 2, 4, 16))
        lv1 = matmul(lv, k)
        gv = reshape(lv1, (1, 8, 1, 64))

    A scale of the keys becomes a scale of the queries.
    """
    return rewrite_functions(mod, lambda function: _Sharer(mod).visit_expr(function))


@dataclass(frozen=True)
class _View:
    """An operator that copies elements from other places. `argument` are the axes of a permutation, or the
    indices of a take along `axis`."""

    kind: str
    source: Shape
    result: Shape
    argument: tuple[int, ...] = ()
    axis: int = 0

    def places(self, places: _Places) -> _Places:
        """Return the flat places in the source for flat places in the result."""
        if self.kind in _RESHAPES:
            return places
        at = list(np.unravel_index(places, self.result))
        if self.kind == "relax.permute_dims":
            at = [at[axis] for axis in np.argsort(self.argument)]
        elif self.kind == "relax.broadcast_to":
            at = at[len(at) - len(self.source) :]
            at = [np.zeros_like(one) if n == 1 else one for one, n in zip(at, self.source, strict=True)]
        else:
            at[self.axis] = np.asarray(self.argument)[at[self.axis]]
        return np.asarray(np.ravel_multi_index(tuple(at), self.source), np.int64)


@dataclass(frozen=True)
class _Heads:
    """The layout of a product's matrices in a tensor. Each matrix is used by `group` consecutive products."""

    group: int
    transposed: bool


@lru_cache(maxsize=64)
def _heads(views: tuple[_View, ...], matrices: int, rows: int, columns: int) -> _Heads | None:
    """Return the layout of matrices in the source of their views, or None if they aren't in order."""
    size = rows * columns
    straight = np.arange(size)
    turned = straight.reshape(columns, rows).T.ravel()
    starts: list[int] = []
    kinds = set()
    for matrix in range(matrices):
        places = matrix * size + straight
        for view in reversed(views):
            places = view.places(places)
        starts.append(int(places[0]))
        offsets = places - places[0]
        kinds.add(0 if np.array_equal(offsets, straight) else 1 if np.array_equal(offsets, turned) else 2)
    total = math.prod(views[0].source)
    group = matrices * size // total
    expected = [matrix // group * size for matrix in range(matrices)] if group else []
    if starts != expected or len(kinds) != 1 or kinds == {2}:
        return None
    return _Heads(group, kinds == {1})


@relax.expr_functor.mutator
class _Sharer(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if _name(call) != "relax.matmul":
            return call
        left, right = call.args
        shapes = static_shape(left), static_shape(right)
        if shapes[0] is None or shapes[1] is None or shapes[0][:-2] != shapes[1][:-2] or len(shapes[0]) < 3:
            return call
        shared = self._shared(call, shapes[0], shapes[1])
        return call if shared is None else shared

    def _shared(self, call: Call, left_shape: Shape, right_shape: Shape) -> relax.Expr | None:
        """Return the product of what is stored; None if there is nothing to gain."""
        (*batch, rows, inner), columns = left_shape, right_shape[-1]
        source, views, scale = self._source(call.args[1])
        if not views or isinstance(self._definition(source), GenericConst):
            return None
        found = _heads(views, math.prod(batch), inner, columns)
        is_cache = _name(self._definition(source)) == "relax.call_tir_inplace"
        if found is None or not (found.group > 1 or is_cache):
            return None
        matrix = (columns, inner) if found.transposed else (inner, columns)
        outer = views[0].source[:-2] if views[0].source[-2:] == matrix else ()
        outer = outer or (math.prod(batch) // found.group,)
        stored = self._reshaped(source, (*outer, *matrix))
        if found.transposed:
            axes = [*range(len(outer)), len(outer) + 1, len(outer)]
            stored = self.builder_.emit(relax.op.permute_dims(stored, axes))
        queries = call.args[0]
        if scale != 1:
            factor = constant(np.array(scale, numpy_dtype(str(queries.ty.dtype))))
            queries = self.builder_.emit(relax.op.multiply(queries, factor))
        queries = self._reshaped(queries, (*outer, found.group * rows, inner))
        out_dtype = call.attrs.out_dtype
        product = self.builder_.emit(relax.op.matmul(queries, stored, str(out_dtype) if out_dtype else None))
        return self._reshaped(product, (*batch, rows, columns))

    def _source(self, value: relax.Expr) -> tuple[relax.Expr, tuple[_View, ...], float]:
        """Return the tensor that a value is a view of, the views from there on, and the factor of scales."""
        views: list[_View] = []
        scale = 1.0
        while True:
            call = self._definition(value)
            view = _view(call)
            factor = None if view else self._factor(call)
            if view is not None:
                views.insert(0, view)
            elif factor is not None:
                scale *= factor
            else:
                return value, tuple(views), scale
            value = call.args[0]

    def _factor(self, call: Any) -> float | None:
        """Return the finite scalar that a call multiplies its first operand by."""
        inverse = {"relax.multiply": 1, "relax.divide": -1}.get(_name(call))
        if inverse is None or not isinstance(call.args[1], GenericConst):
            return None
        number = call.args[1].value.numpy()
        if number.size != 1 or number.dtype.kind != "f" or static_shape(call) != static_shape(call.args[0]):
            return None
        factor = float(number.reshape(())) or math.inf
        return factor**inverse if math.isfinite(factor) else None

    def _reshaped(self, value: relax.Expr, shape: Shape) -> relax.Expr:
        if static_shape(value) == tuple(shape):
            return value
        return self.builder_.emit(relax.op.reshape(value, shape))

    def _definition(self, value: relax.Expr) -> Any:
        return self.lookup_binding(value) if isinstance(value, relax.Var) else value


def _name(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))


def _view(call: Any) -> _View | None:
    """Return a call as a view of its first argument; None for other expressions."""
    name = _name(call)
    if name not in {*_RESHAPES, *_VIEWS}:
        return None
    source, result = static_shape(call.args[0]), static_shape(call)
    if source is None or result is None:
        return None
    return _VIEWS[name](call, source, result) if name in _VIEWS else _View(name, source, result)


def _permuted(call: Call, source: Shape, result: Shape) -> _View | None:
    axes = range(len(source))[::-1] if call.attrs.axes is None else map(int, call.attrs.axes)
    return _View("relax.permute_dims", source, result, tuple(axis % len(source) for axis in axes))


def _taken(call: Call, source: Shape, result: Shape) -> _View | None:
    indices = call.args[1].value.numpy() if isinstance(call.args[1], GenericConst) else None
    if indices is None or indices.ndim != 1 or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(source)
    if indices.min(initial=0) < 0 or indices.max(initial=0) >= source[axis]:
        return None
    return _View("relax.take", source, result, tuple(map(int, indices)), axis)


def _repeated(call: Call, source: Shape, result: Shape) -> _View | None:
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(source)
    indices = np.arange(source[axis]).repeat(int(call.attrs.repeats))
    return _View("relax.take", source, result, tuple(map(int, indices)), axis)


def _broadcast(_call: Call, source: Shape, result: Shape) -> _View | None:
    return _View("relax.broadcast_to", source, result)


_VIEWS: dict[str, Callable[[Call, Shape, Shape], _View | None]] = {
    "relax.broadcast_to": _broadcast,
    "relax.permute_dims": _permuted,
    "relax.repeat": _repeated,
    "relax.take": _taken,
}
