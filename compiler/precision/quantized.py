"""Compute the quantized operators of a model with dot products of bytes.

A quantized tensor of bytes represents `scale * (byte - zero)`. Quantizers keep the operators, and insert
quantize and dequantize between them. A device with dot products of bytes, or tensor cores, computes with the
bytes themselves:

    sum_k sx (x[i, k] - zx) * sw w[k, j]  =  sx sw (sum_k x[i, k] w[k, j]  -  zx sum_k w[k, j])

The last sum is a constant of the model. Other operators stay unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import rewrite_functions, static_shape
from compiler.precision.narrow_weights import is_narrow
from compiler.precision.requantization import WIDE, fold_steps
from compiler.target import capability_of, target_features
from search.sketches.intrinsics import dot_product
from search.sketches.tensor_core import MIN_EXTENTS, TENSOR_SINCE

Array = NDArray[np.generic]

# By operator: its constructor, and the layouts of its data and its kernel.
CONVOLUTIONS = {
    "relax.nn.conv1d": (relax.op.nn.conv1d, "NCW", "OIW"),
    "relax.nn.conv2d": (relax.op.nn.conv2d, "NCHW", "OIHW"),
    "relax.nn.conv3d": (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}
# Operators that move or select values. They have the same effect on the bytes that represent the values.
MOVES = {
    *("relax.reshape", "relax.flatten", "relax.expand_dims", "relax.squeeze", "relax.permute_dims"),
    *("relax.take", "relax.strided_slice", "relax.nn.max_pool1d", "relax.nn.max_pool2d"),
    *("relax.nn.max_pool3d", "relax.max", "relax.min", "relax.broadcast_to"),
}
# float32 represents all integers up to this exactly.
MAX_EXACT = 1 << 24
# The difference of int8 and uint8 values whose bits differ only in the highest.
SHIFT = 128
# For shorter sums over two activations, the sums of their rows and columns cost too much.
MIN_DEPTH = 16


def compute_in_bytes(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Rewrite convolutions and matrix products of quantized tensors where the target has an instruction.

        lv = dequantize(x, sx, zx)                    # x: Tensor((1, 64), "uint8")
        lv1 = dequantize(w, sw, 0)                    # w: Tensor((64, 16), "int8"), a constant
        gv = matmul(lv, lv1)
    ->
        lv = matmul(x, w, out_dtype="int32")
        lv1 = multiply(astype(lv, "float32"), sx * sw)
        gv = add(lv1, -zx * sum(w, axis=0) * sx * sw)

    That constant and a following bias become one. Sums beyond 2^24 are rounded, by far less than a step.

    Other quantize and dequantize operators become elementwise operators, which TVM fuses and
    `compiler.precision.requantization` shortens.
    """
    products = _products_of(target)
    on_cpu = target.kind.name == "llvm"
    mod = rewrite_functions(mod, lambda function: _Integers(mod, products, on_cpu).visit_expr(function))
    mod = rewrite_functions(mod, lambda function: _Elementwise(mod).visit_expr(function))
    return fold_steps(mod, by_table=on_cpu)


class _Product(NamedTuple):
    """The products of an instruction: the type of the operand that is multiplied by the columns, and the
    number of summed terms."""

    rows: str
    depth: int


# The best instruction for a number of sums, a type of columns, and constant columns' values; None if there is
# none.
_Products = Callable[[int, str, Array | None], _Product | None]


def _products_of(target: tvm.target.Target) -> _Products:
    features = target_features(target)
    on_tensor_cores = capability_of(target) >= TENSOR_SINCE["int8", "int32"]

    def best(lanes: int, columns: str, values: Array | None) -> _Product | None:
        if on_tensor_cores:
            # Tiles are padded during the fetch, so any number of terms is possible.
            fits = columns == "int8" and lanes >= MIN_EXTENTS["j"]
            return _Product("int8", depth=1) if fits else None
        narrow = values is not None and is_narrow(values)
        intrinsic = dot_product(features, lanes, columns, narrow=narrow)
        return _Product(intrinsic.rows, intrinsic.depth) if intrinsic is not None else None

    return best


def multiplied_type(call: Call) -> str:
    """Return the type in which a convolution multiplies its data. If the data are bytes, it may be wider."""
    data, weight = (str(one.ty.dtype) for one in call.args)
    if data not in ("int8", "uint8"):
        return data
    if weight == "float32":
        return weight
    kernel, target = call.args[1], tvm.target.Target.current()
    shape = static_shape(kernel)
    if shape is None or target is None:
        return data
    values = kernel.value.numpy() if isinstance(kernel, GenericConst) else None
    product = _products_of(target)(shape[str(call.attrs.kernel_layout).index("O")], weight, values)
    return data if product is None or product.rows not in WIDE else product.rows


@dataclass(frozen=True)
class _Quantized:
    """A quantized value: `scale * (data - zero)`. With several scales, `axis` is their dimension."""

    data: relax.Expr
    scale: NDArray[np.float32]
    zero: int
    axis: int

    @property
    def dtype(self) -> str:
        return str(self.data.ty.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        shape = static_shape(self.data)
        assert shape is not None, "checked when it was found"
        return shape

    def is_scaled_along(self, axis: int) -> bool:
        """Return whether there is one scale, or one for each index of the axis."""
        return self.scale.size == 1 or self.axis % len(self.shape) == axis % len(self.shape)


class _Visitor(relax.PyExprMutator):
    """Access to the bound values for the rewriting of quantized operators."""

    def _call(self, expr: relax.Expr, name: str) -> Call | None:
        """Return the call of this operator that an expression is or that a variable is bound to."""
        while isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr if isinstance(expr, Call) and getattr(expr.op, "name", "") == name else None

    def _constant(self, expr: relax.Expr) -> Array | None:
        while isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr.value.numpy() if isinstance(expr, GenericConst) else None

    def _parameters(self, call: Call) -> tuple[NDArray[np.float32], Array] | None:
        """Return the scales and the zeros of `quantize` or `dequantize`; None if they aren't constant."""
        scale, zero = (self._constant(argument) for argument in call.args[1:3])
        if scale is None or zero is None or str(scale.dtype) != "float32":
            return None
        return scale.reshape(-1).astype(np.float32), zero.reshape(-1)


@relax.expr_functor.mutator
class _Integers(_Visitor):
    """Rewrites operators on quantized values into operators on their bytes."""

    def __init__(self, mod: tvm.IRModule, products: _Products, on_cpu: bool) -> None:
        super().__init__(mod)
        self._products = products
        self._on_cpu = on_cpu
        self._scaled: set[relax.Var] = set()

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = getattr(call.op, "name", "")
        if static_shape(call) is None:
            return call
        if name == "relax.quantize":
            return self._quantized_again(call)
        if name in CONVOLUTIONS or name == "relax.matmul":
            return self._multiplied(call)
        if name == "relax.add":
            return self._biased(call)
        data = self._quantized(call.args[0]) if name in MOVES else None
        moved = None if data is None else self._moved(call, data)
        return call if moved is None else moved

    def _multiplied(self, call: Call) -> relax.Expr:
        """Compute a convolution or matrix product from bytes. Its operands are quantized, or integers that
        bytes hold. Return the call itself if that isn't possible.
        """
        is_integer = str(call.ty.dtype) == "int32"
        of = self._integers if is_integer else self._quantized
        data, other = of(call.args[0]), of(call.args[1])
        if data is None or other is None:
            return call
        is_convolution = call.op.name in CONVOLUTIONS
        found = self._convolution(call, data, other) if is_convolution else self._matmul(data, other)
        if found is None:
            return call
        sums, offset = found
        sums = self.builder_.emit(sums)
        summed, wanted = str(sums.ty.dtype), str(call.ty.dtype)
        if is_integer and np.any(offset):
            sums = self.builder_.emit(relax.op.subtract(sums, relax.const(offset.astype(summed))))
        if summed != wanted:
            sums = self.builder_.emit(relax.op.astype(sums, wanted))
        if is_integer:
            return sums
        scale = data.scale * other.scale
        shape = (1, -1, *[1] * (len(data.shape) - 2)) if is_convolution else scale.shape
        factor = scale.reshape(()) if scale.size == 1 else scale.reshape(shape)
        scaled = self.builder_.emit(relax.op.multiply(sums, relax.const(factor)))
        self._scaled.add(scaled)
        if not np.any(offset):
            return scaled
        shift = -offset.astype(np.float64) * factor
        return relax.op.add(scaled, relax.const(shift.astype(np.float32)))

    def _biased(self, call: Call) -> relax.Expr:
        """Add a bias to the constant that corrects a product.

            lv = add(multiply(astype(sums, "float32"), s), c)
            gv = add(lv, bias)
        ->
            gv = add(multiply(astype(sums, "float32"), s), c + bias)
        """
        for value, other in (call.args, call.args[::-1]):
            inner, bias = self._call(value, "relax.add"), self._constant(other)
            if inner is None or bias is None or inner.args[0] not in self._scaled:
                continue
            shift = self._constant(inner.args[1])
            if shift is not None and static_shape(inner) == static_shape(call):
                with np.errstate(over="ignore"):
                    total = (shift.astype(np.float64) + bias.astype(np.float64)).astype(np.float32)
                return relax.op.add(inner.args[0], relax.const(total))
        return call

    def _integers(self, expr: relax.Expr) -> _Quantized | None:
        """Return the bytes that hold an integer tensor, with the scale one.

            lv = astype(x, "int32")                       # x: Tensor((1, 64), "uint8")
            gv = subtract(lv, 121)
        ->
            1 * (x - 121)
        """
        values = self._constant(expr)
        if values is not None and values.size and values.min() >= -SHIFT and values.max() < SHIFT:
            return _Quantized(relax.const(values.astype(np.int8)), np.ones(1, np.float32), 0, 0)
        number: Array | None = np.zeros(1, np.int32)
        if (call := self._call(expr, "relax.subtract")) is not None:
            expr, number = call.args[0], self._constant(call.args[1])
        if number is None or number.size != 1:
            return None
        if str(expr.ty.dtype) == "int32" and (call := self._call(expr, "relax.astype")) is not None:
            expr = call.args[0]
        if str(expr.ty.dtype) not in ("int8", "uint8") or static_shape(expr) is None:
            return None
        limits, zero = np.iinfo(str(expr.ty.dtype)), int(number.item())
        return _Quantized(expr, np.ones(1, np.float32), zero, 0) if limits.min <= zero <= limits.max else None

    def _quantized(self, expr: relax.Expr) -> _Quantized | None:
        """Return the quantized value that a value was dequantized from; None if it wasn't."""
        call = self._call(expr, "relax.dequantize")
        if call is None or static_shape(call) is None:
            return None
        found = self._parameters(call)
        is_byte = str(call.args[0].ty.dtype) in ("int8", "uint8")
        if found is None or not is_byte or len(set(found[1].tolist())) != 1:
            return None
        return _Quantized(call.args[0], found[0], int(found[1][0]), int(call.attrs.axis))

    def _quantized_again(self, call: Call) -> relax.Expr:
        """Remove a dequantize that is followed by an equal quantize.

            lv = dequantize(x, s, z)
            gv = quantize(lv, s, z)
        ->
            gv = x
        """
        before, found = self._quantized(call.args[0]), self._parameters(call)
        if before is None or found is None or before.dtype != str(call.attrs.out_dtype):
            return call
        scale, zero = found
        is_same = np.array_equal(scale, before.scale) and set(zero.tolist()) == {before.zero}
        return before.data if is_same and before.is_scaled_along(int(call.attrs.axis)) else call

    def _moved(self, call: Call, data: _Quantized) -> relax.Expr | None:
        """Move the bytes instead of the values that they represent.

            lv = dequantize(x, s, z)
            gv = reshape(lv, (1, 64))
        ->
            lv = reshape(x, (1, 64))
            gv = dequantize(lv, s, z)
        """
        axis, values, order = data.axis, None, None
        if call.op.name == "relax.permute_dims":
            order = [int(a) for a in call.attrs.axes or reversed(range(len(data.shape)))]
            values = self._constant(data.data)
        if data.scale.size > 1:
            if order is None:
                return None
            axis = order.index(axis % len(order))
        if data.scale.min() <= 0:
            return None  # a maximum would become a minimum
        if values is not None:  # stays a constant, so that its values are known
            moved: relax.Expr = relax.const(np.ascontiguousarray(values.transpose(order)))
        else:
            moved = self.builder_.emit(Call(call.op, [data.data, *call.args[1:]], call.attrs, call.ty_args))
        scale = relax.const(data.scale if data.scale.size > 1 else data.scale.reshape(()))
        zero = relax.const(np.full(scale.value.shape, data.zero, data.dtype))
        return relax.op.dequantize(moved, scale, zero, axis, str(call.ty.dtype))

    def _convolution(
        self, call: Call, data: _Quantized, weight: _Quantized
    ) -> tuple[relax.Expr, Array] | None:
        """Return a convolution of bytes and the excess of its sums. Padding represents zero, and additional
        input channels fill up instructions. A grouped convolution fills no instruction, and is computed in
        floats if these are exact."""
        compute, data_layout, kernel_layout = CONVOLUTIONS[call.op.name]
        attrs = call.attrs
        values = self._constant(weight.data)
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout or attrs.data_layout)
        if values is None or layouts != (data_layout, kernel_layout, data_layout):
            return None
        if data.scale.size > 1 or weight.zero or not weight.is_scaled_along(0):
            return None
        outputs, inputs = values.shape[:2]
        padding = [int(extent) for extent in attrs.padding]
        ends = len(padding) // 2
        pads = [(0, 0), (0, 0), *zip(padding[:ends], padding[ends:], strict=True)]
        in_floats = int(attrs.groups) > 1
        instruction = self._products(outputs, weight.dtype, values)
        if instruction is None or (in_floats and math.prod(values.shape[1:]) * 255 * SHIFT > MAX_EXACT):
            return None
        if not in_floats:
            pads[1] = (0, -inputs % instruction.depth)
            values = np.pad(values, [(0, 0), pads[1], *[(0, 0)] * ends])
        # The convolution widens the data where it pads or skips some. Otherwise, the previous kernel does.
        # On a CPU, a convolution of floats always widens them: it reads a quarter of the memory.
        rows = "float32" if in_floats else instruction.rows
        skips = any(int(step) > 1 for step in attrs.strides)
        widens = (in_floats and self._on_cpu) or (
            not any(pads[1]) and (not data.zero if any(padding) else skips)
        )
        if rows not in WIDE or not widens:
            data = self._in_type(data, rows)
        source = data.data
        if any(map(any, pads)) and (data.zero or any(pads[1])):
            source = self.builder_.emit(
                relax.op.nn.pad(source, [n for pair in pads for n in pair], "constant", float(data.zero))
            )
            pads = [(0, 0)] * len(pads)
        summed = compute(
            source,
            relax.const(values.astype(np.float32) if in_floats else values),
            strides=attrs.strides,
            padding=[before for before, _ in pads[2:]] + [after for _, after in pads[2:]],
            dilation=attrs.dilation,
            groups=int(attrs.groups),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype="float32" if in_floats else "int32",
        )
        offset = data.zero * values.reshape(outputs, -1).astype(np.int64).sum(axis=1)
        return summed, offset.reshape(1, outputs, *[1] * ends)

    def _matmul(self, data: _Quantized, other: _Quantized) -> tuple[relax.Expr, Array] | None:
        """Return a product of bytes, of a constant or of two activations, and the excess of its sums."""
        depth, lanes = other.shape[-2:] if len(other.shape) > 1 else (0, 0)
        values = self._constant(other.data)
        columns = "int8" if values is None else other.dtype
        instruction = self._products(lanes, columns, values)
        if instruction is None or depth % instruction.depth or data.scale.size > 1 or len(data.shape) < 2:
            return None
        if not other.is_scaled_along(-1) or (values is None and depth < MIN_DEPTH):
            return None
        data, other = self._in_type(data, instruction.rows), self._in_type(other, columns)
        if values is not None and other.zero:
            return None
        product = relax.op.matmul(data.data, other.data, out_dtype="int32")
        if values is not None:
            return product, data.zero * values.astype(np.int64).sum(axis=-2)
        # Both are activations: the sums of rows and columns are computed at run time.
        for operand, axis, zero in ((other, -2, data.zero), (data, -1, other.zero)):
            if zero:
                wide = self.builder_.emit(relax.op.astype(operand.data, "int32"))
                sums = self.builder_.emit(relax.op.sum(wide, axis=axis, keepdims=True))
                part = self.builder_.emit(relax.op.multiply(sums, relax.const(zero, "int32")))
                product = relax.op.subtract(self.builder_.emit(product), part)
        return product, np.array(-depth * data.zero * other.zero)

    def _in_type(self, value: _Quantized, dtype: str) -> _Quantized:
        """Convert a value between int8 and uint8 if necessary, by adding or subtracting 128; or to a wide
        type, by subtracting the zero.
        """
        if value.dtype == dtype:
            return value
        if dtype in WIDE:
            wide = self.builder_.emit(relax.op.astype(value.data, dtype))
            if value.zero:
                wide = self.builder_.emit(relax.op.subtract(wide, relax.const(value.zero, dtype)))
            return _Quantized(wide, value.scale, 0, value.axis)
        by = SHIFT if dtype == "uint8" else -SHIFT
        values = self._constant(value.data)
        if values is not None:
            data: relax.Expr = relax.const((values.astype(np.int16) + by).astype(dtype))
        else:
            wide = self.builder_.emit(relax.op.astype(value.data, "int32"))
            moved = self.builder_.emit(relax.op.add(wide, relax.const(by, "int32")))
            data = self.builder_.emit(relax.op.astype(moved, dtype))
        return _Quantized(data, value.scale, value.zero + by, value.axis)


@relax.expr_functor.mutator
class _Elementwise(_Visitor):
    """Writes `quantize` and `dequantize` with operators that take part in layout conversion."""

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name, shape = getattr(call.op, "name", ""), static_shape(call)
        if name not in ("relax.quantize", "relax.dequantize") or shape is None:
            return call
        found = self._parameters(call)
        if found is None or {str(call.args[0].ty.dtype), str(call.ty.dtype)} - {"float32", "int8", "uint8"}:
            return call
        along = [1] * len(shape)
        if len(shape):
            along[int(call.attrs.axis)] = -1
        scale, zero = (
            value.reshape(()) if value.size == 1 else value.reshape(along)
            for value in (found[0], found[1].astype(np.float32))
        )
        data = call.args[0]
        if name == "relax.dequantize":
            data = self.builder_.emit(relax.op.astype(data, "float32"))
            if zero.any():
                data = self.builder_.emit(relax.op.subtract(data, relax.const(zero)))
            return relax.op.multiply(data, relax.const(scale))
        limits = np.iinfo(str(call.ty.dtype))
        steps = [
            (relax.op.multiply, np.float32(1) / scale),
            *([(relax.op.add, zero)] if zero.any() else []),
            (relax.op.round,),
            (relax.op.maximum, np.float32(limits.min)),
            (relax.op.minimum, np.float32(limits.max)),
        ]
        for compute, *operand in steps:
            data = self.builder_.emit(compute(data, *(relax.const(np.asarray(one)) for one in operand)))
        return relax.op.astype(data, str(call.ty.dtype))
