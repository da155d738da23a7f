"""Rewrite arithmetic that TVM leaves undefined or gets wrong: 0 * NaN, divisors of 0, long shifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant, rewrite_functions, static_shape
from compiler.importing.values import numpy_dtype

_DIVISIONS = frozenset({"relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod"})
# Replacements for arithmetic on booleans, for which TVM generates no code.
_BOOLEAN_OPERATORS = {
    "relax.add": relax.op.logical_or,
    "relax.maximum": relax.op.logical_or,
    "relax.multiply": relax.op.logical_and,
    "relax.minimum": relax.op.logical_and,
}
_REMAINDERS = frozenset({"relax.mod", "relax.floor_mod"})
# Operators whose second argument holds indices into the first one.
_INDEXED_OPERATORS = frozenset(
    f"relax.{name}" for name in ("gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "take")
)
# Operators on boxes of images, and the limit of a corner's coordinates.
_BOX_OPERATORS = frozenset({"relax.vision.roi_align", "relax.vision.roi_pool"})
_MAX_COORDINATE = 1 << 20
# The name of the functions that round to the precision of bfloat16.
ROUNDED = "rounded"
# TVM generates no code for these functions of bfloat16.
_FLOAT32_OPERATORS: dict[str, Callable[..., relax.Expr]] = {
    "relax.floor_mod": relax.op.floor_mod,
    "relax.isfinite": relax.op.isfinite,
    "relax.isinf": relax.op.isinf,
    "relax.isnan": relax.op.isnan,
    "relax.mod": relax.op.mod,
    "relax.power": relax.op.power,
}


def define_arithmetic(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite operators so that all operands give a defined result, and none crashes the process.

    - x86 crashes a process that divides an integer by 0, or the least integer by -1. Like in XLA, x / 0 is
      -1, x % 0 is x, least / -1 is least, and least % -1 is 0.
    - Processors take the distance of a shift modulo the number of bits. Here, a negative distance, or one of
      all bits or more, gives zeros or copies of the sign bit.
    - A sum of booleans is their disjunction, a product their conjunction.
    - TVM simplifies x * 0, 0 / x and x - x to 0 even if x is NaN or infinite, and x == x to true.
    - A box of an image that doesn't exist becomes a box of the nearest image.
    - Negative indices of gathers and scatters count from the end. Indices are clipped, because TVM would read
      or write foreign memory.
    - Powers, remainders and tests of bfloat16 are computed in float32.

        gv = divide(x, y)                                     # x, y: int32
    ->
        lv = where(equal(y, 0) or equal(y, -1), 1, y)
        gv = where(equal(y, 0), -1, where(equal(y, -1), negative(x), divide(x, lv)))
    """
    return rewrite_functions(module, lambda function: _Arithmetic(module).visit_expr(function))


def round_to_bfloat16(module: tvm.IRModule) -> tvm.IRModule:
    """Round floats to bfloat16's precision in float32 before casting them to bfloat16.

    TVM omits a cast to bfloat16 if its result is cast back in the same kernel.

        gv = astype(x, "bfloat16")                            # x: float32
    ->
        lv = call_tir(rounded, (x,))                          # float32
        gv = astype(lv, "bfloat16")
    """
    rounding = _Rounding(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rounding.builder_.update_func(name, rounding.visit_expr(function))
    return rounding.builder_.get()


def cast_weights_once(module: tvm.IRModule) -> tvm.IRModule:
    """Let products on tensor cores read softmaxes in bfloat16 without the step of `round_to_bfloat16`. Such a
    product doesn't cast them back.

        lv = nn.softmax(x)                                    # float32
        lv1 = astype(call_tir(rounded, (lv,)), "bfloat16")
        gv = matmul(lv1, v, out_dtype="float32")
    ->
        lv = nn.softmax(x)
        gv = matmul(astype(lv, "bfloat16"), v, out_dtype="float32")
    """
    return rewrite_functions(module, lambda function: _WeightCasts(module).visit_expr(function))


@relax.expr_functor.mutator
class _WeightCasts(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if _name(call) != "relax.matmul":
            return call
        weights = self._cast_once(call.args[0])
        return call if weights is None else Call(call.op, [weights, call.args[1]], call.attrs)

    def _cast_once(self, value: relax.Expr) -> relax.Expr | None:
        """Return a softmax in bfloat16 without the step before the cast; None for other values."""
        call = self._definition(value)
        if _name(call) == "relax.reshape":
            inner = self._cast_once(call.args[0])
            return None if inner is None else self.builder_.emit(relax.op.reshape(inner, call.args[1]))
        if _name(call) != "relax.astype" or str(call.attrs.dtype) != "bfloat16":
            return None
        rounding = self._definition(call.args[0])
        if _name(rounding) != "relax.call_tir":
            return None
        name, (softmax, *_) = rounding.args[0].name_hint, rounding.args[1]
        if name.rstrip("0123456789_") != ROUNDED or _name(self._definition(softmax)) != "relax.nn.softmax":
            return None
        return self.builder_.emit(relax.op.astype(softmax, "bfloat16"))

    def _definition(self, value: relax.Expr) -> Any:
        return self.lookup_binding(value) if isinstance(value, relax.Var) else None


def _name(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))


@relax.expr_functor.mutator
class _Rounding(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if getattr(op.op, "name", "") != "relax.astype" or str(op.ty.dtype) != "bfloat16":
            return call
        (x,) = call.args
        if str(op.args[0].ty.dtype) != "float32" or _elements(x) is not None:
            return call
        rounded = self.builder_.emit(self.builder_.call_te(_rounded, x, primfunc_name_hint=ROUNDED))
        return relax.op.astype(rounded, "bfloat16")


def _rounded(data: te.Tensor) -> te.Tensor:
    """Round to the nearest bfloat16, which is the upper half of a float32; ties go to even."""

    def of(*at: Any) -> Any:
        bits = tirx.reinterpret("uint32", data[at])
        half, lowest, upper = (tirx.const(number, "uint32") for number in (0x7FFF, 1, 0xFFFF0000))
        odd = tirx.bitwise_and(bits >> tirx.const(16, "uint32"), lowest)
        nearest = tirx.reinterpret("float32", tirx.bitwise_and(bits + half + odd, upper))
        return tirx.Select(tirx.isnan(data[at]), data[at], nearest)

    return te.compute(data.shape, of, name="rounded")


@relax.expr_functor.mutator
class _Arithmetic(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = getattr(op.op, "name", "")
        if name in _BOOLEAN_OPERATORS and str(op.ty.dtype) == "bool":
            return _BOOLEAN_OPERATORS[name](*call.args)
        if name in _FLOAT32_OPERATORS and str(op.args[0].ty.dtype) == "bfloat16":
            emit = self.builder_.emit
            wide = [emit(relax.op.astype(argument, "float32")) for argument in call.args]
            return relax.op.astype(emit(_FLOAT32_OPERATORS[name](*wide)), op.ty.dtype)
        if name in _INDEXED_OPERATORS:
            return self._inside(name, call, op)
        if name in _BOX_OPERATORS:
            return self._boxes_inside(call, op)
        if name in _DIVISIONS or name in ("relax.multiply", "relax.left_shift", "relax.right_shift"):
            return self._defined(name, call, op)
        if name == "relax.subtract" and op.args[0].same_as(op.args[1]) and "float" in str(op.ty.dtype):
            return self._zero_of_finite(call.args[0], op)
        if name in ("relax.equal", "relax.not_equal") and op.args[0].same_as(op.args[1]):
            x, dtype = call.args[0], str(op.args[0].ty.dtype)
            if "float" in dtype:
                x = relax.op.astype(x, "float32") if dtype == "bfloat16" else x
                is_nan = self.builder_.emit(relax.op.isnan(x))
                return is_nan if name == "relax.not_equal" else relax.op.logical_not(is_nan)
        return call

    def _inside(self, name: str, call: Call, op: Call) -> relax.Expr:
        """Return the call with valid indices."""
        shape, at = static_shape(op.args[0]), static_shape(op.args[1])
        data, places, *more = call.args
        if shape is None or at is None or self._are_within(places):
            return call
        if name == "relax.take":
            if str(op.attrs.mode) != "fast":
                return call
            if _elements(places) is not None and op.attrs.axis is not None:
                places = self._counted(places, np.array(shape[int(op.attrs.axis)]))
            return relax.op.take(data, places, op.attrs.axis, "clip")
        if name in ("relax.gather_elements", "relax.scatter_elements"):
            extents = np.array(shape[int(op.attrs.axis)])
        else:
            first = int(op.attrs.batch_dims) if name == "relax.gather_nd" else 0
            extents = np.array(shape[first : first + at[-1]])
        places = self._counted(places, extents)
        if name == "relax.gather_elements":
            return relax.op.gather_elements(data, places, op.attrs.axis)
        if name == "relax.gather_nd":
            return relax.op.gather_nd(data, places, op.attrs.batch_dims)
        if name == "relax.scatter_elements":
            return self._scattered(call, places, shape, at)
        return relax.op.scatter_nd(data, places, *more, op.attrs.reduction)

    def _boxes_inside(self, call: Call, op: Call) -> relax.Expr:
        """Pool boxes (image, x, y, x, y) with existing images and coordinates that fit integers."""
        data, boxes = call.args
        images, dtype = static_shape(op.args[0]), str(boxes.ty.dtype)
        if images is None:
            return call
        most = np.array([images[0] - 1, *[_MAX_COORDINATE] * 4])
        least = np.array([0, *[-_MAX_COORDINATE] * 4])
        emit = self.builder_.emit
        wide = emit(relax.op.astype(boxes, "float32")) if dtype == "bfloat16" else boxes
        is_nan = emit(relax.op.isnan(wide))
        upper, lower, zero = (
            constant(np.array(each).astype(numpy_dtype(dtype))) for each in (most, least, 0)
        )
        boxes = emit(relax.op.where(is_nan, zero, boxes))
        boxes = emit(relax.op.minimum(emit(relax.op.maximum(boxes, lower)), upper))
        return Call(call.op, [data, boxes], call.attrs)

    def _scattered(self, call: Call, places: Any, shape: Sequence[int], at: Sequence[int]) -> relax.Expr:
        """Scatter into the part of the data that has the indices' extents along all axes but one.

        TVM assumes that the indices have the data's extents there.
        """
        data, _, updates = call.args
        axis, emit = int(call.attrs.axis) % len(shape), self.builder_.emit
        if 0 in at:
            return data
        cut = [k for k, count in enumerate(at) if k != axis and count < shape[k]]
        part = emit(relax.op.strided_slice(data, cut, [0] * len(cut), [at[k] for k in cut])) if cut else data
        result = relax.op.scatter_elements(part, places, updates, axis, call.attrs.reduction)
        for number, k in reversed(list(enumerate(cut))):
            beside = cut[:number]
            ends = [*(at[other] for other in beside), shape[k]]
            rest = emit(relax.op.strided_slice(data, [*beside, k], [*(0 for _ in beside), at[k]], ends))
            result = relax.op.concat([emit(result), rest], axis=k)
        return result

    def _are_within(self, places: Any) -> bool:
        """Return whether the indices come from an operator that sorts or selects elements."""
        found = self.lookup_binding(places) if isinstance(places, relax.Var) else None
        return getattr(getattr(found, "op", None), "name", "") == "relax.argsort"

    def _counted(self, places: Any, extents: NDArray[np.int64]) -> relax.Expr:
        """Return the indices, counted from the start and clipped to the extent."""
        known, dtype = _elements(places), str(places.ty.dtype)
        if known is not None:
            counted = np.where(known < 0, known + extents, known)
            return constant(counted.clip(0, extents - 1).astype(dtype))
        extent, last, zero = (
            constant(np.array(number).astype(dtype)) for number in (extents, extents - 1, 0)
        )
        emit = self.builder_.emit
        if not dtype.startswith("uint"):
            counted = emit(relax.op.add(places, extent))
            places = emit(relax.op.where(emit(relax.op.less(places, zero)), counted, places))
            places = emit(relax.op.maximum(places, zero))
        return emit(relax.op.minimum(places, last))

    def _defined(self, name: str, call: Call, op: Call) -> relax.Expr:
        dtype = str(op.ty.dtype)
        x, y = call.args
        if "float" in dtype:
            return self._of_zero(name, call, op)
        if "int" not in dtype:
            return call
        if name in _DIVISIONS:
            return self._division(name, x, y, dtype)
        if name != "relax.multiply":
            return self._shift(name, x, y, dtype)
        return call

    def _of_zero(self, name: str, call: Call, op: Call) -> relax.Expr:
        """Return a product with 0, or a quotient of 0, that is right for every operand."""
        of, other = (1, 0) if name == "relax.multiply" and _is_zero(op.args[1]) else (0, 1)
        if name not in ("relax.multiply", "relax.divide") or not _is_zero(op.args[of]):
            return call
        x = call.args[other]
        zero, nan, infinity = (
            constant(np.array(number).astype(numpy_dtype(str(op.ty.dtype)))) for number in (0, np.nan, np.inf)
        )
        size = self.builder_.emit(relax.op.abs(x))
        is_product = name == "relax.multiply"
        known = relax.op.less(size, infinity) if is_product else relax.op.greater(size, zero)
        result = self.builder_.emit(relax.op.where(self.builder_.emit(known), zero, nan))
        shape = static_shape(op)
        return result if static_shape(op.args[other]) == shape else relax.op.broadcast_to(result, op.ty.shape)

    def _zero_of_finite(self, x: Any, op: Call) -> relax.Expr:
        """Return x - x."""
        zero, nan, infinity = (
            constant(np.array(number).astype(numpy_dtype(str(op.ty.dtype)))) for number in (0, np.nan, np.inf)
        )
        is_finite = self.builder_.emit(relax.op.less(self.builder_.emit(relax.op.abs(x)), infinity))
        return relax.op.where(is_finite, zero, nan)

    def _division(self, name: str, x: Any, y: Any, dtype: str) -> relax.Expr:
        emit, divide = self.builder_.emit, _OPERATORS[name]
        divisors, signed = _elements(y), not dtype.startswith("uint")
        minus_one = np.array(-1 if signed else np.iinfo(dtype).max).astype(dtype)
        if divisors is not None and not np.isin(divisors, [0, -1] if signed else [0]).any():
            return divide(x, y)
        zero, one = (constant(np.array(number, dtype)) for number in (0, 1))
        by_zero = emit(relax.op.equal(y, zero))
        special = by_zero
        if signed:
            by_minus_one = emit(relax.op.equal(y, constant(minus_one)))
            special = emit(relax.op.logical_or(by_zero, by_minus_one))
        found = emit(divide(x, emit(relax.op.where(special, one, y))))
        if name in _REMAINDERS:
            # Divided by 1, the remainder is 0.
            return relax.op.where(by_zero, x, found)
        if signed:
            found = emit(relax.op.where(by_minus_one, emit(relax.op.negative(x)), found))
        return relax.op.where(by_zero, constant(minus_one), found)

    def _shift(self, name: str, x: Any, by: Any, dtype: str) -> relax.Expr:
        emit, shift = self.builder_.emit, _OPERATORS[name]
        last = np.iinfo(dtype).bits - 1
        distances = _elements(by)
        if distances is not None and np.all((distances >= 0) & (distances <= last)):
            return shift(x, by)
        bound = constant(np.array(last, dtype))
        far = emit(relax.op.greater(by, bound))
        if not dtype.startswith("uint"):
            far = emit(relax.op.logical_or(far, emit(relax.op.less(by, constant(np.array(0, dtype))))))
        moved = emit(shift(x, emit(relax.op.where(far, bound, by))))
        if name == "relax.right_shift" and not dtype.startswith("uint"):
            return moved
        return relax.op.where(far, constant(np.array(0, dtype)), moved)


_OPERATORS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "relax.divide": relax.op.divide,
    "relax.floor_divide": relax.op.floor_divide,
    "relax.mod": relax.op.mod,
    "relax.floor_mod": relax.op.floor_mod,
    "relax.left_shift": relax.op.left_shift,
    "relax.right_shift": relax.op.right_shift,
}


def _elements(expr: Any) -> NDArray[Any] | None:
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def _is_zero(expr: Any) -> bool:
    elements = _elements(expr)
    return elements is not None and elements.size == 1 and float(elements.reshape(()).item()) == 0
