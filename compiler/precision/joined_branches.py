"""Store bytes where a quantized model adds or multiplies the results of two products.

An example is a residual block with a convolution in its shortcut. Fusion puts the addition into the kernel of
one convolution. Otherwise, the other kernel would dequantize its own bytes and store floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import operator_name, static_shape
from compiler.precision.tables import is_look_up

# Variants (`compiler.variants`) replace products by calls of their kernels.
_PRODUCTS = {"nn.conv1d", "nn.conv2d", "nn.conv3d", "matmul", "call_tir"}
_ELEMENTWISE = {"astype", "add", "multiply", "subtract", "maximum", "minimum", "round", "nn.relu"}
_JOINS = {"add", "multiply", "subtract"}


def keep_bytes(mod: tvm.IRModule) -> tvm.IRModule:
    """Make the bytes that `stored_bytes` finds, and those that are taken from tables, outputs of their
    dataflow blocks. Fusion never joins an output with its readers.

        lv = astype(sums, "uint8")
        lv1 = multiply(astype(lv, "float32"), scale)      # fused: a kernel that stores lv1
        gv = add(other, lv1)
    ->
        gv1 = astype(sums, "uint8")                       # a kernel that stores gv1
        lv1 = multiply(astype(gv1, "float32"), scale)
        gv = add(other, lv1)
    """
    mod = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, relax.Function):
            mod[name] = _Keeper(mod, function).visit_expr(function)
    return mod


def stored_bytes(block: relax.DataflowBlock) -> set[relax.Var]:
    """Return the bytes that products pass to an operator that adds or multiplies two of them elementwise.

    If both products pass bytes, only the later product's bytes are returned. No other operator reads the
    products, or the values between.
    """
    reading = _Reading(block)
    return {found for call in reading.calls.values() if (found := reading.joined(call)) is not None}


def _taken_bytes(block: relax.DataflowBlock) -> set[relax.Var]:
    """Return what is taken from tables, and stays bytes for all readers."""
    users = relax.analysis.udchain(block)
    calls = {binding.var: binding.value for binding in block.bindings if isinstance(binding.value, Call)}

    def stays(variable: relax.Var) -> bool:
        readers = [calls.get(user) for user in users[variable]]
        return not any(call is not None and str(call.ty.dtype) == "int16" for call in readers)

    return {variable for variable, call in calls.items() if is_look_up(call) and stays(variable)}


class _Reading:
    """The calls of a dataflow block and what reads them."""

    def __init__(self, block: relax.DataflowBlock) -> None:
        self._users: Mapping[relax.Var, Sequence[relax.Var]] = relax.analysis.udchain(block)
        self._position = {binding.var: number for number, binding in enumerate(block.bindings)}
        self.calls = {
            binding.var: binding.value for binding in block.bindings if isinstance(binding.value, Call)
        }

    def joined(self, call: Call) -> relax.Var | None:
        """Return the bytes to store before a call; None if it doesn't combine two products."""
        if operator_name(call) not in _JOINS or any(isinstance(one, GenericConst) for one in call.args):
            return None
        first, second = call.args
        branches = [branch for branch in map(self._branch, call.args) if branch is not None]
        if len(branches) < len(call.args) or static_shape(first) != static_shape(second):
            return None
        with_bytes = [branch for branch in branches if branch[1] is not None]
        return max(with_bytes, key=lambda branch: branch[0], default=(0, None))[1]

    def _branch(self, value: relax.Expr) -> tuple[int, relax.Var | None] | None:
        """Return the position of the product that a value comes from, and the last bytes on the way. Return
        None if other operators than elementwise ones lie between."""
        stored = None
        while isinstance(value, relax.DataflowVar) and len(self._users[value]) == 1:
            call = self.calls.get(value)
            if call is None:
                return None
            name = operator_name(call)
            if name in _PRODUCTS:
                return self._position[value], stored
            if name == "astype" and stored is None and str(call.ty.dtype) in ("int8", "uint8"):
                stored = value
            operands = [one for one in call.args if not isinstance(one, GenericConst)]
            if name not in _ELEMENTWISE or len(operands) != 1:
                return None
            [value] = operands
        return None


@relax.expr_functor.mutator
class _Keeper(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod)
        self._kept: set[relax.Var] = set()
        for block in function.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                self._kept |= stored_bytes(block) | _taken_bytes(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._kept or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        self.set_var_remap(binding.var, self.builder_.emit_output(self.visit_expr(binding.value)))
