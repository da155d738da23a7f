"""A variant that computes convolutions and products of images of odd sizes with one long axis of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import tvm
from tvm import te, tirx, topi
from tvm.ir import Call, GenericConst

from compiler.constants.fold import static_shape
from compiler.target import is_x86, target_features
from compiler.variants.rewriting import Kernel, rewrite_calls
from search.sketches.factors import allows_partial_rows

# With fewer channels, the operands and results that are stored between nests take longer than tiles save.
MIN_CHANNELS = 32


class FlatRows:
    """Multiplies windows of an image by constant weights as rows of one axis, which a tile needn't divide.

        conv[y, x, o] = sum(data[y + j, x + k, c] * weight[j, k, c, o])         y, x < 7
    ->
        rows[i, j, k, c] = data[i // 7 + j, i % 7 + k, c]                       i < 49
        products[i, o] = sum(rows[i, j, k, c] * weight[j, k, c, o])
        conv[y, x, o] = products[y * 7 + x, o]

    Tiles of 7 rows and a vector load more than they multiply. With tiles of 5 rows and two vectors, the last
    one is partial and has 4 rows. Only for x86 with 16 registers: with 32, tiles of 7 rows are good.
    """

    name = "flat"
    exact = True

    def __init__(self, target: tvm.target.Target) -> None:
        self._lacks_registers = is_x86(target) and "avx512f" not in target_features(target)

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the calls for which `window_of` returns a window; None if there are none."""
        return rewrite_calls(operators, self.name, _kernel) if self._lacks_registers else None


@dataclass(frozen=True)
class Window:
    """How rows of the result read the image: the extents of their axes, and the strides and paddings of the
    last ones, along which a window moves. A product has no window."""

    rows: tuple[int, ...]
    strides: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def window_of(call: Call) -> Window | None:
    """Return the window of a product or convolution with constant weights of float32, for which one axis of
    rows is better; None for other calls.

    The rows have several axes, and no good tile of rows divides them.
    """
    name, result = getattr(call.op, "name", ""), static_shape(call)
    if name not in ("relax.matmul", "relax.nn.conv2d") or not isinstance(call.args[1], GenericConst):
        return None
    data, weight = static_shape(call.args[0]), call.args[1].value.shape
    is_worth_it = (
        data is not None
        and result is not None
        and {str(one.ty.dtype) for one in (*call.args, call)} == {"float32"}
        and min(weight[-2:]) >= MIN_CHANNELS
        and sum(extent > 1 for extent in result[:-1]) > 1
        and allows_partial_rows(math.prod(result[:-1]))
    )
    if not is_worth_it or result is None:
        return None
    if name == "relax.matmul":
        return Window(result[:-1]) if len(weight) == 2 else None
    attrs = call.attrs
    is_plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NHWC", "HWIO", "NHWC") and all(
        int(step) == 1 for step in (*attrs.dilation, attrs.groups)
    )
    padding = tuple(map(int, attrs.padding))
    return Window(result[:-1], tuple(map(int, attrs.strides)), padding[:2], padding[2:]) if is_plain else None


def _kernel(call: Call) -> Kernel | None:
    window = window_of(call)
    return None if window is None else Kernel(partial(flat_product, window), tuple(call.args))


def flat_product(window: Window, left: te.Tensor, right: te.Tensor) -> te.Tensor:
    """Return the sums of products of windows of [*image, n] and weights [*window, n, o], as [*rows, o],
    computed with one axis of rows."""
    extents = window.rows
    columns, axes = int(right.shape[-1]), len(window.strides)
    steps = [math.prod(extents[at + 1 :]) for at in range(len(extents))]
    strides = (*[1] * (len(extents) - axes), *window.strides)
    if any((*window.before, *window.after)):
        outer = [0] * (len(extents) - axes)
        left = topi.nn.pad(left, [*outer, *window.before, 0], [*outer, *window.after, 0])
    summed = [te.reduce_axis((0, int(extent)), f"k{at}") for at, extent in enumerate(right.shape[:-1])]

    def row(number: tirx.Expr, *place: tirx.Expr) -> tirx.Expr:
        *inside, channel = place
        pixel = [
            number // step % extent * stride
            for step, extent, stride in zip(steps, extents, strides, strict=True)
        ]
        moved = [one + other for one, other in zip(pixel[len(pixel) - axes :], inside, strict=True)]
        return left[(*pixel[: len(pixel) - axes], *moved, channel)]

    def unflattened(*place: tirx.Expr) -> tirx.Expr:
        *pixel, column = place
        number = sum((one * step for one, step in zip(pixel, steps, strict=True)), start=tirx.const(0))
        return products[number, column]

    count = math.prod(extents)
    rows = te.compute((count, *right.shape[:-1]), row, name="rows")
    products = te.compute(
        (count, columns),
        lambda i, o: te.sum(rows[(i, *summed)] * right[(*summed, o)], axis=summed),
        name="products",
    )
    return te.compute((*extents, columns), unflattened, name="product")
