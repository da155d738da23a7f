"""Shorten the arithmetic between the sums of a quantized operator and the bytes of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import rewrite_functions

# The bound of a clamp is redundant if it differs from the quantizer's by less than this: values between the
# two are rounded to the same byte.
SAME_BYTE = 0.49
# The types that hold the difference of a byte and its zero.
WIDE = ("int16", "float32")


def fold_steps(mod: tvm.IRModule) -> tvm.IRModule:
    """Move the multiplication of each quantizer into the constants before it, and remove bounds that the
    quantizer has too.

        lv = multiply(astype(sums, "float32"), s)
        lv1 = add(lv, bias)
        lv2 = nn.relu(lv1)
        lv3 = round(multiply(lv2, 1 / step))
        gv = astype(minimum(maximum(lv3, 0), 255), "uint8")
    ->
        lv = multiply(astype(sums, "float32"), s / step)
        lv1 = add(lv, bias / step)
        lv3 = round(lv1)
        gv = astype(minimum(maximum(lv3, 0), 255), "uint8")
    """
    return rewrite_functions(mod, lambda function: _Folder(mod, function).visit_expr(function))


@dataclass
class _Edits:
    """Calls whose constants are multiplied by a factor, clamps with other bounds, conversions to int16 with
    a lower bound, and calls that are replaced by their first operand that isn't constant."""

    factors: dict[Call, float] = field(default_factory=dict)
    bounds: dict[Call, float] = field(default_factory=dict)
    stored: dict[Call, int] = field(default_factory=dict)
    removed: set[Call] = field(default_factory=set)


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod)
        self._edits = _Edits()
        for block in function.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                _Block(block).find(self._edits)

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if op in self._edits.removed:
            return next(one for one in call.args if not isinstance(one, GenericConst))
        if (bound := self._edits.bounds.get(op)) is not None:
            return Call(call.op, [call.args[0], relax.const(np.float32(bound))], call.attrs, call.ty_args)
        if (least := self._edits.stored.get(op)) is not None:
            whole = self.builder_.emit(relax.op.astype(call.args[0], "int32"))
            clamped = self.builder_.emit(relax.op.maximum(whole, relax.const(least, "int32")))
            return relax.op.astype(clamped, "int16")
        factor = self._edits.factors.get(op)
        if factor is None:
            return call
        return Call(call.op, [_scaled(one, factor) for one in call.args], call.attrs, call.ty_args)


def _scaled(expr: relax.Expr, factor: float) -> relax.Expr:
    return relax.const(_product(expr, factor)) if isinstance(expr, GenericConst) else expr


def _product(constant: GenericConst, factor: float) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return np.asarray(constant.value.numpy().astype(np.float64) * factor).astype(np.float32)


class _Block:
    """The calls and the users of the variables of a dataflow block."""

    def __init__(self, block: relax.DataflowBlock) -> None:
        self._users: Mapping[relax.Var, Sequence[relax.Var]] = relax.analysis.udchain(block)
        self._calls = {
            binding.var: binding.value for binding in block.bindings if isinstance(binding.value, Call)
        }

    def find(self, edits: _Edits) -> None:
        for variable, rounded in self._calls.items():
            if _name(rounded) == "astype" and str(rounded.ty.dtype) in ("int8", "uint8"):
                self._store_as_read(variable, rounded, edits)
            if _name(rounded) != "round":
                continue
            step = self._only_call(rounded.args[0], "multiply")
            number = None if step is None else _number(step.args[1])
            found = None if step is None or not number or number < 0 else self._chain(step.args[0])
            bounds = self._bounds(variable)
            if step is None or number is None or found is None or bounds is None:
                continue
            if not all(_stays_finite(call, number) for call in found):
                continue
            edits.removed.add(step)
            value = step.args[0]
            while (call := self._calls.get(value)) is not None and _is_within(call, number, bounds):
                edits.removed.add(call)
                found.discard(call)
                value = call.args[0]
            edits.factors |= dict.fromkeys(found, number)

    def _store_as_read(self, stored: relax.Var, conversion: Call, edits: _Edits) -> None:
        """Let a quantizer store what its readers make of the bytes: integers of 16 bits, or floats, without
        the zero.

            lv = add(round(x), zero)
            lv1 = astype(minimum(maximum(lv, 0), 255), "uint8")
            lv2 = subtract(astype(lv1, "int16"), zero)
            lv3 = subtract(astype(lv1, "float32"), zero)
        ->
            lv = astype(minimum(round(x), 255 - zero), "int32")
            lv2 = astype(maximum(lv, -zero), "int16")
            lv3 = astype(lv2, "float32")

        Integers have the lower bound, and floats are converted from them in the same kernel: so NaN becomes
        the lower bound, as in ONNX Runtime. x86 turns it into the lowest int32.
        """
        high = self._only_call(conversion.args[0], "minimum")
        low = None if high is None else self._only_call(high.args[0], "maximum")
        value = None if low is None else self._only_call(low.args[0], "add", "round")
        if high is None or low is None or value is None or not isinstance(stored, relax.DataflowVar):
            return
        least, greatest = _number(low.args[1]), _number(high.args[1])
        zero = _number(value.args[1]) if _name(value) == "add" else 0.0
        reads = [self._calls.get(user) for user in self._users[stored]]
        types = {str(call.ty.dtype) if call is not None and _name(call) == "astype" else "" for call in reads}
        are_wide = "int16" in types or len(reads) == 1
        if zero is None or least is None or greatest is None or types - {*WIDE} or not are_wide:
            return
        removed = {call for call in reads if call is not None and str(call.ty.dtype) == "int16"} | {low}
        if zero:
            for user in self._users[stored]:
                inner = [self._calls.get(variable) for variable in self._users[user]]
                if not isinstance(user, relax.DataflowVar) or not inner:
                    return
                for call in inner:
                    if call is None or _name(call) != "subtract" or _number(call.args[1]) != zero:
                        return
                    removed.add(call)
            removed.add(value)
            edits.bounds[high] = greatest - zero
        edits.removed |= removed
        edits.stored[conversion] = round(least - zero)

    def _only_call(self, expr: relax.Expr, *names: str) -> Call | None:
        """Return the call of one of these operators that a variable with one user is bound to."""
        if not isinstance(expr, relax.DataflowVar) or len(self._users[expr]) != 1:
            return None
        call = self._calls.get(expr)
        return call if call is not None and _name(call) in names else None

    def _chain(self, expr: relax.Expr) -> set[Call] | None:
        """Return the calls whose constants to multiply, so that the value is multiplied by a positive factor;
        None if that isn't possible."""
        call = self._only_call(expr, "add", "multiply", "maximum", "minimum", "nn.relu")
        if call is None or str(call.ty.dtype) != "float32":
            return None
        constants = [one for one in call.args if isinstance(one, GenericConst)]
        if _name(call) == "multiply":
            return {call} if len(constants) == 1 else None
        inner = [self._chain(one) for one in call.args if not isinstance(one, GenericConst)]
        if not inner or None in inner or (_name(call) in ("maximum", "minimum") and not constants):
            return None
        return {call for one in inner if one is not None for call in one} | ({call} if constants else set())

    def _bounds(self, rounded: relax.Var) -> tuple[float, float] | None:
        """Return the least and greatest values that a quantizer doesn't clamp, before it adds its zero; None
        if the rounded value doesn't become a byte."""
        zero, bounds = 0.0, {"maximum": -np.inf, "minimum": np.inf}
        while isinstance(rounded, relax.DataflowVar) and len(self._users[rounded]) == 1:
            [rounded] = self._users[rounded]
            call = self._calls.get(rounded)
            if call is None:
                return None
            if _name(call) == "astype":
                is_byte = str(call.ty.dtype) in ("int8", "uint8") and np.isfinite([*bounds.values()]).all()
                return (bounds["maximum"], bounds["minimum"]) if is_byte else None
            number = _number(call.args[1]) if len(call.args) == 2 else None
            if number is None or _name(call) not in ("add", *bounds):
                return None
            if _name(call) == "add":
                zero += number
            else:
                bounds[_name(call)] = number - zero
        return None


def _is_within(call: Call, factor: float, bounds: tuple[float, float]) -> bool:
    """Return whether a call only clamps a value that is multiplied by `factor`, to bounds beyond these."""
    low, high = bounds
    if _name(call) == "nn.relu":
        return low >= -SAME_BYTE
    number = _number(call.args[1]) if len(call.args) == 2 else None
    if number is None:
        return False
    bound = number * factor
    return {"maximum": bound <= low + SAME_BYTE, "minimum": bound >= high - SAME_BYTE}.get(_name(call), False)


def _stays_finite(call: Call, factor: float) -> bool:
    """Return whether constants that are multiplied by `factor` neither overflow nor vanish."""
    for constant in call.args:
        if isinstance(constant, GenericConst):
            product = _product(constant, factor)
            if not np.isfinite(product).all() or np.any((product == 0) != (constant.value.numpy() == 0)):
                return False
    return True


def _number(expr: relax.Expr) -> float | None:
    """Return the value of a constant with one element."""
    if not isinstance(expr, GenericConst) or expr.value.numpy().size != 1:
        return None
    return float(expr.value.numpy().item())


def _name(call: Call) -> str:
    return str(getattr(call.op, "name", "")).removeprefix("relax.")
