"""Look functions of bytes up in tables.

Quantizers keep operators such as sigmoid in floats, between a dequantize and a quantize. Together, they are a
function of 256 values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import operator_name, rewrite_functions

Array = NDArray[Any]

BYTES = ("int8", "uint8")
# The values that a byte may have.
TABLE_SIZE = 256


def look_up_in_tables(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Compute functions of bytes by tables on CPUs, if they contain functions such as exp.

        lv = multiply(astype(x, "float32"), s)        # x: uint8
        lv1 = multiply(lv, sigmoid(lv))
        lv2 = round(multiply(lv1, 1 / step))
        gv = astype(minimum(maximum(lv2, 0), 255), "uint8")
    ->
        lv = astype(x, "int32")
        gv = take(table, lv, axis=0)                  # table: Tensor((256,), "uint8")

    Signed bytes are indices from 0 to 255 after 128 was added. Each reader of a result that is dequantized
    gets a dequantize of its own, so that the result is stored as bytes.
    """
    if target.kind.name != "llvm":
        return mod
    return rewrite_functions(mod, lambda function: _LookUp(mod, function).visit_expr(function))


def is_look_up(call: Call) -> bool:
    """Return whether a call takes bytes from a table."""
    return operator_name(call) == "take" and _is_table(call.args[0]) and int(call.attrs.axis or 0) == 0


def tabulated(block: relax.DataflowBlock) -> Mapping[relax.Var, relax.Var]:
    """Map the results of functions that tables can compute to the bytes that these functions read."""
    return {result: found.source for result, found in _functions(block)}


@dataclass(frozen=True)
class _Function:
    """A function of the bytes `source`: its values for all of them, in ascending order."""

    source: relax.Var
    values: Array
    is_expensive: bool = False


@relax.expr_functor.mutator
class _LookUp(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod)
        self._found: dict[relax.Var, _Function] = {}
        for block in function.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                self._found |= dict(_functions(block))
        self._restored: dict[relax.Var, Call] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(binding.var, relax.DataflowVar) and isinstance(value, Call) and self._restores(value):
            self._restored[binding.var] = value
            return
        found = self._found.get(binding.var)
        if found is None:
            super().visit_var_binding_(binding)
            return
        source = self.visit_expr(found.source)
        place = self.builder_.emit(relax.op.astype(source, "int32"))
        lowest = int(np.iinfo(str(source.ty.dtype)).min)
        if lowest:
            place = self.builder_.emit(relax.op.subtract(place, relax.const(lowest, "int32")))
        taken = relax.op.take(relax.const(found.values), place, axis=0)
        emit = self.builder_.emit if isinstance(binding.var, relax.DataflowVar) else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(taken))

    def visit_call_(self, op: Call) -> relax.Expr:
        """Compute the mean of bytes, and dequantize the mean."""
        if operator_name(op) != "mean" or op.args[0] not in self._restored:
            return self.visit_expr_post_order(op)
        steps, value = [], op.args[0]
        while (call := self._restored.get(value)) is not None:
            steps.append(call)
            value = call.args[0]
        conversion = steps.pop()
        mean: relax.Expr = Call(op.op, [self.builder_.emit(self.visit_expr(conversion))], op.attrs)
        for call in reversed(steps):
            number = call.args[1].value.numpy().reshape((1,) * op.ty.ndim)
            mean = Call(call.op, [self.builder_.emit(mean), relax.const(number)], call.attrs)
        return mean

    def visit_dataflow_var_(self, variable: relax.DataflowVar) -> relax.Expr:
        """Compute a dequantized value anew for each reader."""
        call = self._restored.get(variable)
        if call is None:
            return super().visit_dataflow_var_(variable)
        return self.builder_.emit(self.visit_expr(call))

    def _restores(self, call: Call) -> bool:
        """Return whether a call is part of the dequantize of a table's result."""
        if operator_name(call) not in ("astype", "subtract", "multiply") or "int" in str(call.ty.dtype):
            return False
        first, *others = call.args
        are_numbers = all(isinstance(one, GenericConst) and one.value.numpy().size == 1 for one in others)
        return are_numbers and (first in self._restored or first in self._found)


def _is_table(expr: relax.Expr) -> bool:
    return (
        isinstance(expr, GenericConst)
        and str(expr.ty.dtype) in BYTES
        and tuple(expr.value.shape) == (TABLE_SIZE,)
    )


def _functions(block: relax.DataflowBlock) -> Iterator[tuple[relax.Var, _Function]]:
    """Yield the results of functions that tables can compute, with these functions."""
    known: dict[relax.Var, _Function] = {}
    for binding in block.bindings:
        value, result = binding.value, binding.var
        found = _applied(value, known) if isinstance(value, Call) else None
        is_byte = isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) in BYTES
        if found is not None:
            known[result] = found
            if is_byte and found.is_expensive:
                yield result, found
        elif is_byte:
            limits = np.iinfo(str(value.ty.dtype))
            known[result] = _Function(result, np.arange(limits.min, limits.max + 1, dtype=limits.dtype))


def _applied(call: Call, known: Mapping[relax.Var, _Function]) -> _Function | None:
    """Return the function that a call computes of the same bytes as its operands; None for other calls."""
    compute = _ELEMENTWISE.get(operator_name(call)) or _EXPENSIVE.get(operator_name(call))
    operands = [known.get(one) for one in call.args if isinstance(one, relax.Var)]
    functions = [one for one in operands if one is not None]
    if compute is None or not functions or len(functions) < len(operands):
        return None
    source = functions[0].source
    are_numbers = all(one.value.numpy().size == 1 for one in call.args if isinstance(one, GenericConst))
    if not are_numbers or not all(one.source.same_as(source) for one in functions):
        return None
    arguments: list[Any] = [
        known[one].values if isinstance(one, relax.Var) else one.value.numpy().reshape(())
        for one in call.args
    ]
    with np.errstate(all="ignore"):
        if operator_name(call) == "astype":
            arguments.append(np.dtype(str(call.ty.dtype)))
        values = compute(arguments)
    if values is None or str(values.dtype) != str(call.ty.dtype):
        return None
    is_expensive = operator_name(call) in _EXPENSIVE or any(one.is_expensive for one in functions)
    return _Function(source, values, is_expensive)


_Compute = Callable[[Sequence[Any]], Array | None]


def _converted(arguments: Sequence[Any]) -> Array | None:
    values, dtype = arguments
    if dtype.kind not in "iuf" or dtype.itemsize > 4:
        return None
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        if not np.all((values >= limits.min) & (values <= limits.max)):
            return None  # processors differ
    return np.asarray(values.astype(dtype))


def _exact(function: Callable[[Array], Array]) -> _Compute:
    """Return a function that is computed in float64 and rounded to its argument's type."""
    return lambda arguments: function(arguments[0].astype(np.float64)).astype(arguments[0].dtype)


def _ufunc(function: Callable[..., Array]) -> _Compute:
    return lambda arguments: np.asarray(function(*arguments))


_ELEMENTWISE: Mapping[str, _Compute] = {
    "astype": _converted,
    "add": _ufunc(np.add),
    "subtract": _ufunc(np.subtract),
    "multiply": _ufunc(np.multiply),
    "divide": _ufunc(np.divide),
    "maximum": _ufunc(np.maximum),
    "minimum": _ufunc(np.minimum),
    "round": _ufunc(np.rint),
    "nn.relu": lambda arguments: np.maximum(arguments[0], arguments[0].dtype.type(0)),
}
_EXPENSIVE: Mapping[str, _Compute] = {
    "sigmoid": _exact(lambda x: 1 / (1 + np.exp(-x))),
    "tanh": _exact(np.tanh),
    "exp": _exact(np.exp),
    "erf": _exact(np.vectorize(math.erf, otypes=[np.float64])),
}
