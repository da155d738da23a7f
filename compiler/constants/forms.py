"""Reshape constant operands for TVM's passes: layout conversion and legalization want different ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant, rewrite_functions, static_shape

Array = NDArray[np.generic]
BROADCASTING = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")}


def raise_ranks(mod: tvm.IRModule) -> tvm.IRModule:
    """Give constant operands the rank of the result. Layout conversion, which comes next, would transpose
    around operators whose operands differ in rank.

        x: Tensor((1, 8, 4, 4)), c: Tensor(())
        gv = add(x, c)
    ->
        x: Tensor((1, 8, 4, 4)), c: Tensor((1, 1, 1, 1))
        gv = add(x, c)
    """

    def expand(value: Array, rank: int) -> Array:
        return value.reshape((1,) * (rank - value.ndim) + value.shape)

    return _rewrite_constants(mod, expand)


def lower_scalars(mod: tvm.IRModule) -> tvm.IRModule:
    """Make constants of one element scalars. Legalization, which comes next, writes scalars into the code and
    passes other constants as arguments.

        x: Tensor((1, 8, 4, 4)), c: Tensor((1, 1, 1, 1))
        gv = add(x, c)
    ->
        x: Tensor((1, 8, 4, 4)), c: Tensor(())
        gv = add(x, c)
    """
    return _rewrite_constants(mod, lambda value, _rank: value.reshape(()) if value.size == 1 else value)


_Reshape = Callable[[Array, int], Array]


def _rewrite_constants(mod: tvm.IRModule, reshape: _Reshape) -> tvm.IRModule:
    return rewrite_functions(mod, lambda function: _Reshaper(mod, reshape).visit_expr(function))


@relax.expr_functor.mutator
class _Reshaper(relax.PyExprMutator):
    """Reshapes constant operands of binary operators whose other operand has the shape of the result."""

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
        return constant(self.reshape(operand.value.numpy(), len(static_shape(call) or ())))
