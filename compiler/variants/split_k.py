"""A variant that divides the sums of matrix products and convolutions among the blocks of a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import te, tirx, topi
from tvm.ir import Call

from compiler.constants.fold import static_shape
from compiler.variants.rewriting import Kernel, rewrite_calls

# The shortest part of a sum. Summing the parts of a shorter one takes longer than it saves.
MIN_PART = 64
# The shortest sums that are split, relative to the square root of the number of results. By the estimate for
# an H200, split convolutions gain from 10 (14x14x256, 3x3) on and lose at 4 (28x28x128).
MIN_LENGTH = {"relax.matmul": 2, "relax.nn.conv2d": 5}
CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


class SplitK:
    """Computes products and convolutions with few results and long sums in parts, so that enough blocks have
    work. The parts are added up in their order, so equal inputs have equal results.

        c[i, j] = sum(a[i, k] * b[k, j])                             k < n
    ->
        partial[s, i, j] = sum(a[i, s * n' + k] * b[s * n' + k, j])  k < n' = n / parts
        c[i, j] = sum(partial[s, i, j])                              s < parts

    Convolutions are split along their input channels.
    """

    exact = True

    def __init__(self, parts: int) -> None:
        self.name = f"split_k_{parts}"
        self._parts = parts

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the products and convolutions for which it may help; None if there are none."""
        return rewrite_calls(operators, self.name, self._kernel)

    def _kernel(self, call: Call) -> Kernel | None:
        if convolution_applies(call, self._parts):
            strides, padding, dilation = (
                [int(extent) for extent in extents]
                for extents in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
            )

            def convolve(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
                return split_convolution(data, weight, strides, padding, dilation, self._parts)

            return Kernel(convolve, tuple(call.args))
        if not product_applies(call, self._parts):
            return None

        def compute(left: te.Tensor, right: te.Tensor) -> te.Tensor:
            return split_product(left, right, self._parts)

        return Kernel(compute, tuple(call.args))


def product_applies(call: Call, parts: int) -> bool:
    """Return whether a call is a product of matrices of 32-bit floats with few results and long sums, which
    `parts` divides. The second matrix may be the same one for all of a batch."""
    if getattr(call.op, "name", "") != "relax.matmul" or static_shape(call) is None:
        return False
    left, right = (static_shape(one) for one in call.args)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return False
    summed, results = left[-1], left[-2] * right[-1]
    return (
        (len(right) == 2 or left[:-2] == right[:-2])
        and _is_float32(call)
        and summed % parts == 0
        and _is_worth_it(call, summed, results, parts)
    )


def convolution_applies(call: Call, parts: int) -> bool:
    """Return whether a call is a convolution of 32-bit floats, channels last and in one group, with few
    results and long sums, whose input channels `parts` divides."""
    if getattr(call.op, "name", "") != "relax.nn.conv2d":
        return False
    attrs, result, weight = call.attrs, static_shape(call), static_shape(call.args[1])
    if result is None or weight is None or int(attrs.groups) != 1:
        return False
    height, width, inputs, _ = weight
    return (
        (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == CHANNELS_LAST
        and _is_float32(call)
        and inputs % parts == 0
        and _is_worth_it(call, height * width * inputs, math.prod(result[1:]), parts)
    )


def _is_float32(call: Call) -> bool:
    return {str(one.ty.dtype) for one in (*call.args, call)} == {"float32"}


def _is_worth_it(call: Call, summed: int, results: int, parts: int) -> bool:
    """Return whether sums of `summed` products are long and their `results` too few to fill a GPU."""
    return summed >= MIN_LENGTH[call.op.name] * math.isqrt(results) and summed // parts >= MIN_PART


def split_product(left: te.Tensor, right: te.Tensor, parts: int) -> te.Tensor:
    """Return the product of [*batch, m, n] and [n, o] or [*batch, n, o], summed in as many parts."""
    length = int(left.shape[-1]) // parts
    k, s = te.reduce_axis((0, length), "k"), te.reduce_axis((0, parts), "s")
    shape = (*left.shape[:-1], right.shape[-1])

    def multiply(part: tirx.Expr, *place: tirx.Expr) -> tirx.Expr:
        *rows, column = place
        batch = rows[:-1] if len(right.shape) > 2 else []
        at = part * length + k
        return te.sum(left[(*rows, at)] * right[(*batch, at, column)], axis=[k])

    partial = te.compute((parts, *shape), multiply, name="partial")
    return te.compute(shape, lambda *place: te.sum(partial[(s, *place)], axis=[s]), name="product")


def split_convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    parts: int,
) -> te.Tensor:
    """Return the convolution of [n, h, w, inputs] and [i, j, inputs, outputs], summed in as many parts.

    `padding` is top, left, bottom, right.
    """
    top, left, bottom, right = padding
    padded = topi.nn.pad(data, (0, top, left, 0), (0, bottom, right, 0), name="padded")
    batch, *image, inputs = (int(extent) for extent in padded.shape)
    *kernel, _, outputs = (int(extent) for extent in weight.shape)
    height, width = (
        (pixels - (taps - 1) * apart - 1) // step + 1
        for pixels, taps, apart, step in zip(image, kernel, dilation, strides, strict=True)
    )
    length = inputs // parts
    i, j = te.reduce_axis((0, kernel[0]), "i"), te.reduce_axis((0, kernel[1]), "j")
    c, s = te.reduce_axis((0, length), "c"), te.reduce_axis((0, parts), "s")

    def multiply(part: tirx.Expr, n: tirx.Expr, h: tirx.Expr, w: tirx.Expr, o: tirx.Expr) -> tirx.Expr:
        row, column = h * strides[0] + i * dilation[0], w * strides[1] + j * dilation[1]
        channel = part * length + c
        return te.sum(padded[n, row, column, channel] * weight[i, j, channel, o], axis=[i, j, c])

    shape = (batch, height, width, outputs)
    partial = te.compute((parts, *shape), multiply, name="partial")
    return te.compute(shape, lambda *place: te.sum(partial[(s, *place)], axis=[s]), name="convolution")
