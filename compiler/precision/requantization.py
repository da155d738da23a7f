"""Shorten the arithmetic between the sums of a quantized operator and the bytes of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import operator_name, rewrite_functions
from compiler.precision.joined_branches import stored_bytes
from compiler.precision.tables import tabulated

# The bound of a clamp is redundant if it differs from the quantizer's by less than this: values between the
# two are rounded to the same byte.
SAME_BYTE = 0.49
# The types that hold the difference of a byte and its zero.
WIDE = ("int16", "float32")


def fold_steps(mod: tvm.IRModule, *, by_table: bool) -> tvm.IRModule:
    """Move the multiplication and the zero of each quantizer into the constants before them, and remove
    bounds that the quantizer has too.

        lv = multiply(astype(sums, "float32"), s)
        lv1 = add(lv, bias)
        lv2 = nn.relu(lv1)
        lv3 = round(add(multiply(lv2, 1 / step), zero))
        gv = astype(minimum(maximum(lv3, 0), 255), "uint8")
    ->
        lv = multiply(astype(sums, "float32"), s / step)
        lv1 = add(lv, bias / step + zero)
        lv3 = round(lv1)
        gv = astype(minimum(maximum(lv3, 0), 255), "uint8")

    A zero that no addition takes stays. Values in the middle of two steps are rounded to the even byte, not
    to the even step: if the zero is odd, that is the other one.

    With `by_table`, functions of bytes that tables will compute read and return bytes.
    """
    return rewrite_functions(mod, lambda function: _Folder(mod, function, by_table).visit_expr(function))


@dataclass
class _Edits:
    """The calls of a block to change.

    `moved` has a factor and a shift for the constants of each call. `bounds` has a new bound for each clamp.
    The conversions in `stored` will convert to int16, after a clamp to this lower bound. Calls in `removed`
    are replaced by their first operand that isn't constant.
    """

    moved: dict[Call, tuple[float, float]] = field(default_factory=dict)
    bounds: dict[Call, float] = field(default_factory=dict)
    stored: dict[Call, int] = field(default_factory=dict)
    removed: set[Call] = field(default_factory=set)


@dataclass(frozen=True)
class _Chain:
    """The calls whose constants to multiply, so that their result is multiplied. To shift the result, shift
    the constants of the `shifted` calls; None if that isn't possible."""

    scaled: frozenset[Call]
    shifted: frozenset[Call] | None

    def then(self, call: Call, *, is_sum: bool = False) -> _Chain:
        """Append a call with one constant or bound."""
        if is_sum:
            return _Chain(self.scaled | {call}, frozenset({call}))
        return _Chain(self.scaled | {call}, None if self.shifted is None else self.shifted | {call})


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function, by_table: bool) -> None:
        super().__init__(mod)
        self._edits = _Edits()
        for block in function.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                _Block(block, by_table).find(self._edits)

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
        if (moved := self._edits.moved.get(op)) is None:
            return call
        if operator_name(call) == "nn.relu":
            return relax.op.maximum(call.args[0], relax.const(np.float32(moved[1])))
        arguments = [
            relax.const(_moved(one, *moved)) if isinstance(one, GenericConst) else one for one in call.args
        ]
        return Call(call.op, arguments, call.attrs, call.ty_args)


def _moved(constant: GenericConst, factor: float, shift: float) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        values = constant.value.numpy().astype(np.float64) * factor + shift
        return np.asarray(values).astype(np.float32)


class _Block:
    """The calls and the users of the variables of a dataflow block."""

    def __init__(self, block: relax.DataflowBlock, by_table: bool) -> None:
        self._users: Mapping[relax.Var, Sequence[relax.Var]] = relax.analysis.udchain(block)
        self._calls = {
            binding.var: binding.value for binding in block.bindings if isinstance(binding.value, Call)
        }
        looked_up = tabulated(block) if by_table else {}
        self._stored = stored_bytes(block) | {*looked_up, *looked_up.values()}

    def find(self, edits: _Edits) -> None:
        for variable, conversion in self._calls.items():
            is_byte = operator_name(conversion) == "astype" and str(conversion.ty.dtype) in ("int8", "uint8")
            if is_byte and variable not in self._stored:
                self._store_as_read(variable, conversion, edits)
        for variable, rounded in self._calls.items():
            bounds = self._bounds(variable) if operator_name(rounded) == "round" else None
            if bounds is not None:
                self._fold(rounded, bounds, edits)

    def _fold(self, rounded: Call, bounds: tuple[float, float], edits: _Edits) -> None:
        """Fold the step and the zero of a quantizer that clamps its rounded values to these bounds."""
        zero, shift = self._zero_before(rounded)
        step = self._only_call(rounded.args[0] if shift is None else shift.args[0], "multiply")
        factor = None if step is None else _number(step.args[1])
        chain = None if step is None or not factor or factor < 0 else self._chain(step.args[0])
        if step is None or factor is None or chain is None:
            return
        if shift in edits.removed:  # its readers need no zero
            bounds = bounds[0] - zero, bounds[1] - zero
            zero, shift = 0.0, None
        shifted = (chain.shifted or frozenset()) if zero else frozenset()
        moved = {call: (factor, zero if call in shifted else 0.0) for call in chain.scaled | shifted}
        moved = {call: each for call, each in moved.items() if operator_name(call) != "nn.relu" or each[1]}
        if not all(_stays_finite(call, *each) for call, each in moved.items()):
            return
        edits.removed.add(step)
        if shift is not None and shifted:
            edits.removed.add(shift)
        value = step.args[0]
        while (call := self._calls.get(value)) is not None and _is_within(call, factor, zero, bounds):
            edits.removed.add(call)
            moved.pop(call, None)
            value = call.args[0]
        edits.moved |= moved

    def _zero_before(self, rounded: Call) -> tuple[float, Call | None]:
        """Return the zero that a quantizer adds before it rounds, and the addition, if there is one."""
        shift = self._only_call(rounded.args[0], "add")
        zero = None if shift is None else _number(shift.args[1])
        return (0.0, None) if zero is None else (zero, shift)

    def _store_as_read(self, stored: relax.Var, conversion: Call, edits: _Edits) -> None:
        """Let a quantizer store what its readers make of the bytes: integers of 16 bits, without the zero.

            lv = round(add(x, zero))
            lv1 = astype(minimum(maximum(lv, 0), 255), "uint8")
            lv2 = subtract(astype(lv1, "int16"), zero)
            lv3 = subtract(astype(lv1, "float32"), zero)
        ->
            lv = astype(minimum(round(x), 255 - zero), "int32")
            lv2 = astype(maximum(lv, -zero), "int16")
            lv3 = astype(lv2, "float32")

        A single reader of floats is in the same kernel, and converts integers of 16 bits too. It still
        subtracts the zero, because bounds with the zero would make kernels of equal layers differ.

        Integers have the lower bound, so that NaN becomes this bound, as in ONNX Runtime: x86 turns NaN into
        the lowest int32.
        """
        high = self._only_call(conversion.args[0], "minimum")
        low = None if high is None else self._only_call(high.args[0], "maximum")
        value = None if low is None else self._only_call(low.args[0], "add", "round")
        if high is None or low is None or value is None or not isinstance(stored, relax.DataflowVar):
            return
        least, greatest = _number(low.args[1]), _number(high.args[1])
        zero, shift = (
            (_number(value.args[1]), value) if operator_name(value) == "add" else self._zero_before(value)
        )
        reads = [self._calls.get(user) for user in self._users[stored]]
        types = {
            str(call.ty.dtype) if call is not None and operator_name(call) == "astype" else ""
            for call in reads
        }
        are_wide = "int16" in types or len(reads) == 1
        if zero is None or least is None or greatest is None or types - {*WIDE} or not are_wide:
            return
        removed = {call for call in reads if call is not None and str(call.ty.dtype) == "int16"} | {low}
        if "int16" not in types:
            zero = 0.0
        if zero:
            for user in self._users[stored]:
                inner = [self._calls.get(variable) for variable in self._users[user]]
                if not isinstance(user, relax.DataflowVar) or not inner:
                    return
                for call in inner:
                    if call is None or operator_name(call) != "subtract" or _number(call.args[1]) != zero:
                        return
                    removed.add(call)
            if shift is not None:
                removed.add(shift)
            edits.bounds[high] = greatest - zero
        edits.removed |= removed
        edits.stored[conversion] = round(least - zero)

    def _only_call(self, expr: relax.Expr, *names: str) -> Call | None:
        """Return the call of one of these operators that a variable with one user is bound to."""
        if not isinstance(expr, relax.DataflowVar) or len(self._users[expr]) != 1:
            return None
        call = self._calls.get(expr)
        return call if call is not None and operator_name(call) in names else None

    def _chain(self, expr: relax.Expr) -> _Chain | None:
        """Return the calls that compute a value which can be multiplied by a positive factor by changing
        constants; None if it can't."""
        call = self._only_call(expr, "add", "multiply", "maximum", "minimum", "nn.relu")
        if call is None or str(call.ty.dtype) != "float32":
            return None
        constants = [one for one in call.args if isinstance(one, GenericConst)]
        if operator_name(call) == "multiply":
            return _Chain(frozenset({call}), None) if len(constants) == 1 else None
        inner = [self._chain(one) for one in call.args if not isinstance(one, GenericConst)]
        chains = [one for one in inner if one is not None]
        if not chains or len(chains) < len(inner):
            return None
        if len(chains) == 1:
            return chains[0].then(call, is_sum=operator_name(call) == "add")
        if operator_name(call) != "add":
            return None
        shifted = None
        if not call.args[0].same_as(call.args[1]):  # or it would be shifted twice
            shifted = next((one.shifted for one in chains if one.shifted is not None), None)
        return _Chain(frozenset().union(*(one.scaled for one in chains)), shifted)

    def _bounds(self, rounded: relax.Var) -> tuple[float, float] | None:
        """Return the least and greatest values that a quantizer doesn't clamp after it has rounded them; None
        if the rounded value doesn't become a byte."""
        zero, bounds = 0.0, {"maximum": -np.inf, "minimum": np.inf}
        while isinstance(rounded, relax.DataflowVar) and len(self._users[rounded]) == 1:
            [rounded] = self._users[rounded]
            call = self._calls.get(rounded)
            if call is None:
                return None
            if operator_name(call) == "astype":
                is_byte = str(call.ty.dtype) in ("int8", "uint8") and np.isfinite([*bounds.values()]).all()
                return (bounds["maximum"], bounds["minimum"]) if is_byte else None
            number = _number(call.args[1]) if len(call.args) == 2 else None
            if number is None or operator_name(call) not in ("add", *bounds):
                return None
            if operator_name(call) == "add":
                zero += number
            else:
                bounds[operator_name(call)] = number - zero
        return None


def _is_within(call: Call, factor: float, zero: float, bounds: tuple[float, float]) -> bool:
    """Return whether a call only clamps a value that is multiplied by `factor` and shifted by `zero`, to
    bounds beyond these."""
    low, high = bounds
    if operator_name(call) == "nn.relu":
        return zero <= low + SAME_BYTE
    number = _number(call.args[1]) if len(call.args) == 2 else None
    if number is None:
        return False
    bound = number * factor + zero
    return {"maximum": bound <= low + SAME_BYTE, "minimum": bound >= high - SAME_BYTE}.get(
        operator_name(call), False
    )


def _stays_finite(call: Call, factor: float, shift: float) -> bool:
    """Return whether constants that are multiplied by `factor` and shifted neither overflow nor vanish."""
    for constant in call.args:
        if isinstance(constant, GenericConst):
            product, result = _moved(constant, factor, 0.0), _moved(constant, factor, shift)
            if not np.isfinite(result).all() or np.any((product == 0) != (constant.value.numpy() == 0)):
                return False
    return True


def _number(expr: relax.Expr) -> float | None:
    """Return the value of a constant with one element."""
    if not isinstance(expr, GenericConst) or expr.value.numpy().size != 1:
        return None
    return float(expr.value.numpy().item())
