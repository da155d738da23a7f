"""A variant that rounds the factors of float32 matrix products and convolutions to TF32, for tensor cores.

TF32 has float32's range and float16's ten bits of fraction. So the relative error of each factor is at most 1
in 2048. Sums stay in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import tvm
from tvm import te, topi
from tvm.ir import Call

from compiler.constants.fold import static_shape
from compiler.precision import tf32
from compiler.variants.rewriting import Kernel, rewrite_calls
from core.job import TF32
from search.sketches.tensor_core import MIN_EXTENTS, TENSOR_SINCE

MATMUL = "relax.matmul"
# The layouts of each convolution, channels last.
LAYOUTS = {
    "relax.nn.conv1d": ("NWC", "WIO", "NWC"),
    "relax.nn.conv2d": ("NHWC", "HWIO", "NHWC"),
    "relax.nn.conv3d": ("NDHWC", "DHWIO", "NDHWC"),
}
OLDEST = TENSOR_SINCE[TF32, "float32"]


class Tf32:
    """Computes matrix products, and convolutions of one group, with rounded factors.

        c[i, j] = sum(a[i, k] * b[k, j])
    ->
        c[i, j] = sum(rounded(a[i, k]) * rounded(b[k, j]))
    """

    name = TF32
    exact = False

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the products that `applies` accepts. Return None if there are none."""
        return rewrite_calls(operators, self.name, _kernel)


def applies(call: Call) -> bool:
    """Return whether a call is a product of 32-bit floats that tensor cores compute: see MIN_EXTENTS."""
    name = getattr(call.op, "name", "")
    if name != MATMUL and name not in LAYOUTS:
        return False
    left, right, result = (static_shape(one) for one in (*call.args, call))
    if left is None or right is None or result is None:
        return False
    if {str(one.ty.dtype) for one in (*call.args, call)} != {"float32"}:
        return False
    if name == MATMUL:
        if min(len(left), len(right)) < 2 or (len(right) > 2 and len(right) != len(left)):
            return False
        if any(own not in (1, extent) for own, extent in zip(right[:-2], left[:-2], strict=False)):
            return False
        # The rows of all matrices that are multiplied by the same one count.
        shared = [extent for extent, own in zip_longest(left[:-2], right[:-2], fillvalue=1) if own == 1]
        parts = {"i": math.prod(shared) * left[-2], "j": right[-1], "k": left[-1]}
    else:
        attrs = call.attrs
        if LAYOUTS[name] != (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) or attrs.groups != 1:
            return False
        parts = {"i": math.prod(result[:-1]), "j": result[-1], "k": math.prod(right[:-1])}
    return all(parts[part] >= least for part, least in MIN_EXTENTS.items())


def _kernel(call: Call) -> Kernel | None:
    if not applies(call):
        return None
    if call.op.name == MATMUL:
        return Kernel(product, tuple(call.args))
    strides, dilation, padding = (
        [int(number) for number in numbers]
        for numbers in (call.attrs.strides, call.attrs.dilation, call.attrs.padding)
    )

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return convolution(data, weight, strides, padding, dilation)

    return Kernel(compute, tuple(call.args))


def product(left: te.Tensor, right: te.Tensor) -> te.Tensor:
    """Return the product of [*batch, m, n] and [n, o] or [*batch, n, o]. An extent of the second batch may be
    1, as of the keys that several heads share.
    """
    k = te.reduce_axis((0, int(left.shape[-1])), "k")

    def multiply(*place: Any) -> Any:
        *rows, column = place
        batch = [
            index if int(own) == int(extent) else 0
            for index, own, extent in zip(rows, right.shape[:-2], left.shape[:-2], strict=False)
        ]
        return te.sum(tf32.rounded(left[(*rows, k)]) * tf32.rounded(right[(*batch, k, column)]), axis=[k])

    return te.compute((*left.shape[:-1], right.shape[-1]), multiply, name="product")


def convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """Return the convolution of [n, *image, inputs] and [*kernel, inputs, outputs]: [n, *image', outputs].
    `padding` has that before the first pixel of each direction, then that behind the last."""
    before, after = padding[: len(strides)], padding[len(strides) :]
    padded = topi.nn.pad(data, (0, *before, 0), (0, *after, 0), name="padded") if any(padding) else data
    *kernel, inputs, outputs = (int(extent) for extent in weight.shape)
    taps = [te.reduce_axis((0, pixels), f"r{axis}") for axis, pixels in enumerate(kernel)]
    c = te.reduce_axis((0, inputs), "c")
    image = [
        (int(extent) - dilated * (pixels - 1) - 1) // stride + 1
        for extent, pixels, stride, dilated in zip(padded.shape[1:-1], kernel, strides, dilation, strict=True)
    ]

    def multiply(n: Any, *place: Any) -> Any:
        *pixel, o = place
        read = [
            at * stride + tap * dilated
            for at, tap, stride, dilated in zip(pixel, taps, strides, dilation, strict=True)
        ]
        factors = padded[(n, *read, c)], weight[(*taps, c, o)]
        return te.sum(tf32.rounded(factors[0]) * tf32.rounded(factors[1]), axis=[*taps, c])

    return te.compute((data.shape[0], *image, outputs), multiply, name="convolution")
