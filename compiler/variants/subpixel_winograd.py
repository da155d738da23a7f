"""A variant that computes the phases of transposed convolutions by Winograd's minimal filtering.

If a phase of `compiler.variants.subpixel` uses 2x2 weights, F(2x2, 2x2) of `compiler.variants.winograd`
computes four of its outputs with 9 multiplications instead of 16. The transforms only add and subtract.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, topi
from tvm.ir import Call

from compiler.variants.rewriting import Kernel, rewrite_calls
from compiler.variants.subpixel import Direction, applies, axes_of, channels_last, weights_by_phase
from compiler.variants.winograd import MIN_CHANNELS, constant, matrices, written_sum

TILE = TAPS = 2
EDGE = TILE + TAPS - 1
# Transformed weights are 2.25 times as large. With fewer windows of a phase, reading them takes longest.
MIN_WINDOWS = 8


class SubpixelWinograd:
    """Computes transposed convolutions channels-last, phase by phase, as products of transformed tiles.

        conv[o, h, w] = sum(dilated[c, h + i, w + j] * weight[c, o, 3 - i, 3 - j])             i, j < 4
    ->
        transformed[e, v, t, r, p, q, c] = sum(padded[c, 2 * p + (t + 1) // 2 + i, 2 * q + (r + 1) // 2 + j]
                                               * B[i, e] * B[j, v])                            i, j < 3
        products[e, v, t, r, p, q, o] = sum(transformed[e, v, t, r, p, q, c] * weight'[e, v, t, r, c, o])
        conv[o, 4 * p + 2 * h + t, 4 * q + 2 * w + r]
            = sum(products[e, v, t, r, p, q, o] * A[e, h] * A[v, w])                     h, w, t, r < 2
    """

    name = "subpixel_winograd"
    exact = False

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the transposed convolutions whose phases have 2x2 weights, enough windows and enough
        channels; None if there are none."""
        return rewrite_calls(operators, self.name, _kernel)


def _kernel(call: Call) -> Kernel | None:
    if not applies(call) or int(call.attrs.groups) != 1:
        return None
    data, weight = call.args
    axes = vertical, horizontal = axes_of(call)
    by_phase = weights_by_phase(weight.value.numpy(), vertical, horizontal, 1)
    if min(by_phase.shape[-2:]) < MIN_CHANNELS or any(
        axis.taps != TAPS or axis.windows < MIN_WINDOWS for axis in axes
    ):
        return None

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return transposed_convolution(data, weight, vertical, horizontal)

    return Kernel(compute, (data, relax.const(transform_weights(by_phase))))


def transform_weights(by_phase: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return G g G^T of every phase and pair of channels: [s, s', 2, 2, inputs, outputs] -> [3, 3, s, s',
    inputs, outputs]. Weights by phase are in reverse order."""
    matrix = matrices(TILE, TAPS)[2][:, ::-1]
    transformed = np.einsum(
        "ei,vj,trijco->evtrco", matrix, matrix, by_phase.astype(np.float64), optimize=True
    )
    return np.ascontiguousarray(transformed, dtype=np.float32)


def transposed_convolution(
    data: te.Tensor, weight: te.Tensor, vertical: Direction, horizontal: Direction
) -> te.Tensor:
    """Compute a transposed convolution from transformed weights.

    data: [n, inputs, h, w], weight: as `transform_weights` gives it; the result is [n, outputs, h', w'].
    """
    batch, inputs, outputs = int(data.shape[0]), int(weight.shape[4]), int(weight.shape[5])
    rows, columns = (-(-axis.windows // TILE) for axis in (vertical, horizontal))
    beyond = (
        axis.beyond + tiles * TILE - axis.windows for axis, tiles in ((vertical, rows), (horizontal, columns))
    )
    padded = topi.nn.pad(channels_last(data), (0, TAPS - 1, TAPS - 1, 0), (0, *beyond, 0), name="padded")
    inverse_matrix, data_matrix = (
        constant(matrix, name) for matrix, name in zip(matrices(TILE, TAPS), "AB", strict=False)
    )
    i = te.reduce_axis((0, EDGE), "i")

    def transform(e: Any, v: Any, n: Any, t: Any, r: Any, *place: Any) -> Any:
        p, q, c = place
        row = p * TILE + (t + vertical.padding) // vertical.phases + i
        column = q * TILE + (r + horizontal.padding) // horizontal.phases
        inner = written_sum(padded[n, row, column + j, c] * data_matrix[j, v] for j in range(EDGE))
        return te.sum(data_matrix[i, e] * inner, axis=[i])

    phases = vertical.phases, horizontal.phases
    transformed = te.compute(
        (EDGE, EDGE, batch, *phases, rows, columns, inputs), transform, name="transformed"
    )
    c = te.reduce_axis((0, inputs), "c")

    def multiply(e: Any, v: Any, n: Any, t: Any, r: Any, *place: Any) -> Any:
        p, q, o = place
        return te.sum(transformed[e, v, n, t, r, p, q, c] * weight[e, v, t, r, c, o], axis=[c])

    products = te.compute((EDGE, EDGE, batch, *phases, rows, columns, outputs), multiply, name="products")
    e = te.reduce_axis((0, EDGE), "e")

    def invert(n: Any, p: Any, h: Any, t: Any, *place: Any) -> Any:
        q, w, r, o = place
        inner = written_sum(products[e, v, n, t, r, p, q, o] * inverse_matrix[v, w] for v in range(EDGE))
        return te.sum(inverse_matrix[e, h] * inner, axis=[e])

    inverse = te.compute(
        (batch, rows, TILE, phases[0], columns, TILE, phases[1], outputs), invert, name="inverse"
    )

    def result(n: Any, o: Any, *pixel: Any) -> Any:
        (p, h, t), (q, w, r) = (
            (at // (TILE * count), at // count % TILE, at % count)
            for at, count in zip(pixel, phases, strict=True)
        )
        return inverse[n, p, h, t, q, w, r, o]

    return te.compute((batch, outputs, vertical.results, horizontal.results), result, name="convolution")
