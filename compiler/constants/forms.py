"""Constant operands in the rank that TVM's passes want: layout conversion another one than legalization."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import rewrite_functions, static_shape

Array = NDArray[np.generic]
BROADCASTING = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")}


def raise_ranks(mod: tvm.IRModule) -> tvm.IRModule:
    """Before layout conversion, which transposes around operators whose operands differ in rank.

    add(x: (1, 8, 4, 4), const: ())  ->  add(x, const: (1, 1, 1, 1))
    """
    return _rewrite_constants(mod, _with_rank)


def lower_scalars(mod: tvm.IRModule) -> tvm.IRModule:
    """Before legalization, which writes scalars into the code and passes everything else as an argument.

    add(x: (1, 8, 4, 4), const: (1, 1, 1, 1))  ->  add(x, const: ())
    """
    return _rewrite_constants(mod, lambda value, _rank: value.reshape(()) if value.size == 1 else value)


def _with_rank(value: Array, rank: int) -> Array:
    return value.reshape((1,) * (rank - value.ndim) + value.shape)


_Reshape = Callable[[Array, int], Array]


def _rewrite_constants(mod: tvm.IRModule, reshape: _Reshape) -> tvm.IRModule:
    return rewrite_functions(mod, lambda function: _Reshaper(mod, reshape).visit_expr(function))


@relax.expr_functor.mutator
class _Reshaper(relax.PyExprMutator):
    """Reshapes the constant operands that don't decide the result's shape."""

    def __init__(self, mod: tvm.IRModule, reshape: _Reshape) -> None:
        super().__init__(mod)
        self.reshape = reshape

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if getattr(call.op, "name", "") not in BROADCASTING or static_shape(call) is None:
            return call
        left, right = call.args
        if static_shape(left) == static_shape(call):
            return Call(call.op, [left, self._reshaped(right, call)], call.attrs)
        if static_shape(right) == static_shape(call):
            return Call(call.op, [self._reshaped(left, call), right], call.attrs)
        return call

    def _reshaped(self, operand: relax.Expr, call: Call) -> relax.Expr:
        if not isinstance(operand, GenericConst):
            return operand
        return relax.const(self.reshape(operand.value.numpy(), len(static_shape(call) or ())))
