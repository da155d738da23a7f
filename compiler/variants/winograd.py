"""A variant that computes 3x3 and kx3x3 convolutions by Winograd's minimal filtering: fewer multiplications,
more additions.

F(m x m, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), computes a tile
of m x m outputs from a tile of a x a inputs, a = m + 2, with a * a multiplications instead of 9 * m * m:

    Y = A^T [ (G g G^T) * (B^T d B) ] A        d: inputs, g: weights, Y: outputs, *: element by element

A convolution in three dimensions filters so in two of them, and adds up the depth's products before the last
transform. The weights are transformed here, once, in double precision. Rounding errors grow with the tile:
about 1e-6 of the largest output for m = 2, 1e-5 for m = 4. `compiler.variants.integer_winograd` computes
bytes without rounding.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi
from tvm.ir import Call, GenericConst

from compiler.constants.fold import static_shape
from compiler.variants.rewriting import Kernel, rewrite_calls
from core.profile import FLOAT32

KERNEL = 3
# The layouts of each operator, channels last.
LAYOUTS = {
    "relax.nn.conv2d": ("NHWC", "HWIO", "NHWC"),
    "relax.nn.conv3d": ("NDHWC", "DHWIO", "NDHWC"),
}
# With fewer channels than this, the transforms cost more than they save.
MIN_CHANNELS = 16
# By tile size, the smallest images in pixels. Transformed weights are 1.8 (2) and 4 times (4) as large as the
# weights, and each is used once per tile. With few tiles, reading them costs more than their products save.
MIN_PIXELS = {2: 8, 4: 24}
# By the pixels of a tile of inputs in each direction, the points at which polynomials are evaluated, chosen
# for the least rounding (Barabasz et al., 2018).
POINTS = {3: (0.0, -1.0), 4: (0.0, -1.0, 1.0), 6: (0.0, -1.0, 1.0, 0.5, -2.0)}


@dataclass(frozen=True)
class Arithmetic:
    """The element types of transformed tiles and of their products' sums. Transformed weights are scaled, so
    that the outputs are 2 ** `shift` times too large."""

    tiles: str = FLOAT32
    sums: str = FLOAT32
    shift: int = 0


FLOATS = Arithmetic()


class Winograd:
    """Computes convolutions of stride 1, 3x3 in height and width, as products of transformed tiles.

        conv[h, w, o] = sum(data[h + i, w + j, c] * weight[i, j, c, o])
    ->
        transformed[e, v, p, q, c] = sum(data[m*p + i, m*q + j, c] * B[i, e] * B[j, v])      i, j < m + 2
        products[e, v, p, q, o] = sum(transformed[e, v, p, q, c] * weight'[e, v, c, o])
        conv[m*p + h, m*q + w, o] = sum(products[e, v, p, q, o] * A[e, h] * A[v, w])         h, w < m

    It computes in float32. `types` are the possible types of data and weights.
    """

    exact = False

    def __init__(self, tile: int, types: Collection[str] = (FLOAT32,)) -> None:
        self.tile = tile
        self.types = types
        self.name = f"winograd_{tile}"

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the convolutions that `applies` accepts; None if there are none."""
        return rewrite_calls(operators, self.name, self._kernel)

    def _kernel(self, call: Call) -> Kernel | None:
        if not applies(call, self.tile, self.types):
            return None
        data, weight = call.args
        transformed = transform_weights(weight.value.numpy(), matrices(self.tile)[2])
        padding = [int(extent) for extent in call.attrs.padding]

        def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
            return convolution(data, weight, padding, self.tile)

        return Kernel(compute, (data, relax.const(transformed)))


def applies(call: Call, tile: int, types: Collection[str] = (FLOAT32,)) -> bool:
    """Return whether a call is a convolution for which this tile size is the best.

    It must have sums of float32, and constant weights of one of the `types`.
    """
    pixels = filtered_pixels(call)
    return (
        pixels is not None
        and _best_tile(pixels) == tile
        and str(call.args[1].value.dtype) in types
        and str(call.ty.dtype) == FLOAT32
    )


def filtered_pixels(call: Call) -> int | None:
    """Return the pixels in the shorter direction of a convolution's images. None unless it has stride 1,
    channels last, enough of them, 3x3 in height and width, and constant weights.
    """
    layouts = LAYOUTS.get(getattr(call.op, "name", ""))
    if layouts is None or not isinstance(call.args[1], GenericConst):
        return None
    attrs, weight, result = call.attrs, call.args[1].value, static_shape(call)
    fits = (
        layouts == (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        and tuple(weight.shape[-4:-2]) == (KERNEL, KERNEL)
        and all(int(step) == 1 for step in (*attrs.strides, *attrs.dilation, attrs.groups))
        and min(weight.shape[-2:]) >= MIN_CHANNELS
    )
    return min(result[-3:-1]) if fits and result is not None else None


def _best_tile(pixels: int) -> int | None:
    """Return the tile size for an image with this number of pixels in each direction; None if there is
    none."""
    return max((tile for tile, fewest in MIN_PIXELS.items() if pixels >= fewest), default=None)


def convolution(
    data: te.Tensor, weight: te.Tensor, padding: Sequence[int], tile: int, arithmetic: Arithmetic = FLOATS
) -> te.Tensor:
    """Compute a convolution of stride 1 from transformed weights.

    data: [n, h, w, inputs], weight: [a, a, inputs, outputs], padding: top, left, bottom, right; the result is
    [n, h', w', outputs]. With a depth, it is in front of h, and the depth of the kernel in front of inputs.
    The last tiles may reach beyond the padded data, where zeros are read.
    """
    before, after = padding[: len(padding) // 2], padding[len(padding) // 2 :]
    batch, *image, inputs = (int(extent) for extent in data.shape)
    edge, _, *depths, _, outputs = (int(extent) for extent in weight.shape)
    *slices, height, width = (
        extent + sum(around) - pixels + 1
        for extent, around, pixels in zip(
            image, zip(before, after, strict=True), (*depths, KERNEL, KERNEL), strict=True
        )
    )
    rows, columns = -(-height // tile), -(-width // tile)
    inverse_matrix, data_matrix = (
        constant(matrix, name, dtype)
        for matrix, name, dtype in zip(
            matrices(tile), "AB", (arithmetic.sums, arithmetic.tiles), strict=False
        )
    )
    beyond = (*(0 for _ in depths), rows * tile - height, columns * tile - width)
    padded = topi.nn.pad(
        data, (0, *before, 0), (0, *(a + b for a, b in zip(after, beyond, strict=True)), 0), name="padded"
    )

    def pixel(*place: Any) -> Any:
        return padded[place].astype(arithmetic.tiles)

    # The inner sum of a transform's two sums is written out. TVM then compiles the kernel in half the time,
    # and LLVM computes what several outputs of a tile share only once.
    i = te.reduce_axis((0, edge), "i")

    def transform(e: Any, v: Any, n: Any, *place: Any) -> Any:
        *d, p, q, c = place
        return te.sum(
            data_matrix[i, e]
            * written_sum(
                pixel(n, *d, tile * p + i, tile * q + j, c) * data_matrix[j, v] for j in range(edge)
            ),
            axis=[i],
        )

    transformed = te.compute(
        (edge, edge, batch, *padded.shape[1:-3], rows, columns, inputs), transform, name="transformed"
    )
    k = [te.reduce_axis((0, depth), "k") for depth in depths]
    c = te.reduce_axis((0, inputs), "c")

    def multiply(e: Any, v: Any, n: Any, *place: Any) -> Any:
        *d, p, q, o = place
        behind = (at + tap for at, tap in zip(d, k, strict=True))
        factors = transformed[e, v, n, *behind, p, q, c], weight[e, v, *k, c, o]
        return te.sum(operator.mul(*(each.astype(arithmetic.sums) for each in factors)), axis=[*k, c])

    products = te.compute((edge, edge, batch, *slices, rows, columns, outputs), multiply, name="products")
    e = te.reduce_axis((0, edge), "e")

    def invert(n: Any, *place: Any) -> Any:
        *d, p, h, q, w, o = place
        return te.sum(
            inverse_matrix[e, h]
            * written_sum(products[e, v, n, *d, p, q, o] * inverse_matrix[v, w] for v in range(edge)),
            axis=[e],
        )

    outputs_by_tile = te.compute((batch, *slices, rows, tile, columns, tile, outputs), invert, name="inverse")

    def gather(n: Any, *place: Any) -> Any:
        *d, h, w, o = place
        result = outputs_by_tile[n, *d, h // tile, h % tile, w // tile, w % tile, o]
        return result >> tirx.const(arithmetic.shift, arithmetic.sums) if arithmetic.shift else result

    return te.compute((batch, *slices, height, width, outputs), gather, name="convolution")


def constant(matrix: NDArray[np.float64], name: str, dtype: str = FLOAT32) -> te.Tensor:
    """Compute a matrix from the positions of its elements.

    TVM folds these sums as soon as the loops around are unrolled. The nested selections of topi's
    `const_matrix` it simplifies branch by branch, which takes several times as long.
    """

    def entry(row: Any, column: Any) -> tirx.Expr:
        place = row * matrix.shape[1] + column
        return written_sum(
            tirx.Cast(dtype, place == at) * tirx.const(value.item(), dtype)
            for at, value in enumerate(matrix.flat)
            if value
        )

    return te.compute(matrix.shape, entry, name=name)


def written_sum(terms: Iterable[tirx.Expr]) -> tirx.Expr:
    """Return a sum of several terms as one expression."""
    return functools.reduce(operator.add, terms)


def transform_weights(weight: NDArray[Any], matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return G g G^T of every pair of channels: [..., 3, 3, inputs, outputs] -> [a, a, ..., inputs,
    outputs]."""
    transformed = np.einsum(
        "ei,vj,...ijco->ev...co", matrix, matrix, weight.astype(np.float64), optimize=True
    )
    return np.ascontiguousarray(transformed, dtype=np.float32)


def matrices(
    tile: int, kernel: int = KERNEL
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return A, B and G of F(tile x tile, kernel x kernel) by Cook and Toom: polynomials at POINTS and at
    infinity."""
    edge = tile + kernel - 1
    points = np.array(POINTS[edge])
    infinity = np.eye(edge)[-1:]
    spread = np.array([np.prod(point - np.delete(points, at)) for at, point in enumerate(points)])
    inverse = np.vstack([np.vander(points, tile, increasing=True), infinity[:, -tile:]])
    weights = np.vstack([np.vander(points, kernel, increasing=True) / spread[:, None], infinity[:, -kernel:]])
    rows = [np.append(np.poly(np.delete(points, at))[::-1], 0.0) for at in range(len(points))]
    return inverse, np.array([*rows, np.poly(points)[::-1]]).T, weights
