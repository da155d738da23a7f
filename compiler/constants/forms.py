"""Reshape constant operands for TVM's passes: layout conversion and legalization want different ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant, operator_name, rewrite_functions, static_shape

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

    return rewrite_functions(mod, lambda function: _Reshaper(mod, expand, set()).visit_expr(function))


def lower_scalars(mod: tvm.IRModule) -> tvm.IRModule:
    """Make constants of one element scalars, except the scales and zeros of quantized values. Legalization,
    which comes next, writes scalars into the code and passes other constants as arguments. So layers that
    differ in scales and zeros only have equal kernels.

        x: Tensor((1, 8, 4, 4)), b: Tensor((1, 8, 4, 4), "uint8"), c: Tensor((1, 1, 1, 1))
        gv = add(x, c)
        lv = multiply(astype(b, "float32"), c)
    ->
        x: Tensor((1, 8, 4, 4)), b: Tensor((1, 8, 4, 4), "uint8"), c: Tensor(())
        gv = add(x, c)
        lv = multiply(astype(b, "float32"), reshape(c, (1, 1, 1, 1)))
    """

    def lower(value: Array, _rank: int) -> Array:
        return value.reshape(()) if value.size == 1 else value

    def rewrite(function: relax.Function) -> relax.Function:
        return _Reshaper(mod, lower, _quantizing(function)).visit_expr(function)

    return rewrite_functions(mod, rewrite)


def _quantizing(function: relax.Function) -> set[Call]:
    """Return the calls whose constants are scales or zeros of quantized values, alone or combined with other
    constants: those that restore values, and those that a rounding follows."""
    calls = {
        binding.var: binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, Call)
    }
    return _restoring(calls) | {
        found
        for call in calls.values()
        if operator_name(call) == "round"
        for found in _leading_to(call.args[0], calls)
    }


_Calls = Mapping[relax.Var, Call]


def _restoring(calls: _Calls) -> set[Call]:
    """Return the calls that restore values or their means:

    multiply(subtract(astype(bytes, "float32"), zero), scale)
    add(multiply(astype(sums, "float32"), scale), offset)
    multiply(sum(astype(bytes, "int32")), zero)         # of products of two activations
    """
    found: set[Call] = set()
    scaled_sums: set[Call] = set()
    for call in calls.values():
        before = calls.get(call.args[0]) if len(call.args) == 2 else None
        if before is not None and operator_name(before) == "mean":
            before = calls.get(before.args[0])
        if before is None:
            continue
        is_converted = operator_name(before) == "astype" and _is_quantized(before.args[0], calls)
        match operator_name(call), str(call.ty.dtype):
            case "subtract", "float32":
                is_found = is_converted
            case "multiply", "float32":
                is_found = is_converted or (before in found and operator_name(before) == "subtract")
            case "add", "float32":
                is_found = before in scaled_sums
            case "multiply", "int32":
                is_found = operator_name(before) == "sum"
            case _:
                is_found = False
        if is_found:
            found.add(call)
        if is_found and is_converted and str(before.args[0].ty.dtype) == "int32":
            scaled_sums.add(call)
    return found


def _is_quantized(expr: relax.Expr, calls: _Calls) -> bool:
    """Return whether a value is of bytes, of int16, or a sum of their products."""
    call = calls.get(expr) if isinstance(expr, relax.Var) else None
    if str(expr.ty.dtype) != "int32" or call is None:
        return str(expr.ty.dtype) in ("int8", "uint8", "int16")
    if operator_name(call) == "subtract":
        return _is_quantized(call.args[0], calls)
    return operator_name(call) == "matmul" or operator_name(call).startswith("nn.conv")


def _leading_to(expr: relax.Expr, calls: _Calls) -> Iterator[Call]:
    """Yield the additions and multiplications that end in a value. `fold_steps` may have changed their
    constants."""
    call = calls.get(expr) if isinstance(expr, relax.Var) else None
    if call is None or operator_name(call) not in ("add", "multiply", "maximum", "minimum", "nn.relu"):
        return
    if operator_name(call) in ("add", "multiply"):
        yield call
    if operator_name(call) != "multiply":
        for argument in call.args:
            yield from _leading_to(argument, calls)


_Reshape = Callable[[Array, int], Array]


@relax.expr_functor.mutator
class _Reshaper(relax.PyExprMutator):
    """Reshapes a constant operand of a binary operator. The other operand has the shape of the result. Calls
    in `keep` stay as they are.
    """

    def __init__(self, mod: tvm.IRModule, reshape: _Reshape, keep: set[Call]) -> None:
        super().__init__(mod)
        self.reshape = reshape
        self.keep = keep

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if op in self.keep or getattr(call.op, "name", "") not in BROADCASTING or static_shape(call) is None:
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
