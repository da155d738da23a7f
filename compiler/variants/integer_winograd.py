"""A variant that computes 3x3 convolutions of bytes by Winograd's F(2x2, 3x3) in integers, without rounding.

Twice G of `compiler.variants.winograd` is integer, so all transforms are: inputs become at most four times as
large, weights nine times, and both fit into int16. x86's pmaddwd multiplies them. The outputs are four times
the convolution's, which a shift divides exactly.
"""

from __future__ import annotations

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te
from tvm.ir import Call

from compiler.target import target_features
from compiler.variants.rewriting import Kernel, rewrite_calls
from compiler.variants.winograd import Arithmetic, convolution, filtered_pixels, matrices
from core.profile import DOT
from search.sketches.intrinsics import dot_product

TILE = 2
INTEGERS = Arithmetic("int16", "int32", shift=2)
MIN_PIXELS = 7
# The largest absolute values of inputs. Wider inputs may not fit into int16 when they are transformed.
LARGEST = {"uint8": 255, "int8": 128}
# Any vector of sums divides this number of lanes.
MANY_LANES = 64


class IntegerWinograd:
    """Computes convolutions of bytes by constant bytes, of stride 1, as products of transformed tiles of
    int16. Only for a target without dot products of bytes, which are faster."""

    name = "winograd_2_int16"
    exact = True

    def __init__(self, target: tvm.target.Target) -> None:
        self._features = target_features(target)

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the convolutions to which it applies; None if there are none."""
        bytes_by_bytes = dot_product(self._features, MANY_LANES, "int8")
        in_words = dot_product(self._features, MANY_LANES, "int16")
        if in_words is None or (bytes_by_bytes is not None and bytes_by_bytes.rate != DOT + "int16"):
            return None
        return rewrite_calls(operators, self.name, _kernel)


def _kernel(call: Call) -> Kernel | None:
    pixels = filtered_pixels(call)
    if pixels is None or pixels < MIN_PIXELS or str(call.ty.dtype) != INTEGERS.sums:
        return None
    data, weight = call.args
    largest = LARGEST.get(str(data.ty.dtype))
    if largest is None or str(weight.ty.dtype) != "int8":
        return None
    transformed = transform_weights(weight.value.numpy(), largest)
    if transformed is None:
        return None
    padding = [int(extent) for extent in call.attrs.padding]

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return convolution(data, weight, padding, TILE, INTEGERS)

    return Kernel(compute, (data, relax.const(transformed)))


def transform_weights(weight: NDArray[np.int8], largest: int) -> NDArray[np.int16] | None:
    """Return (2G) g (2G)^T of every pair of channels: [..., 3, 3, inputs, outputs] -> [4, 4, ..., inputs,
    outputs]. None if a sum of 32 bits could overflow, in products or in the last transform, for inputs up to
    `largest`.
    """
    inverse, data, matrix = matrices(TILE)
    scaled = 2 * matrix
    exact = weight.astype(np.float64)
    transformed = np.einsum("ei,vj,...ijco->ev...co", scaled, scaled, exact, optimize=True)
    growth = np.abs(data).sum(axis=0)
    inner = tuple(range(2, transformed.ndim - 1))
    sums = largest * np.outer(growth, growth)[..., None] * np.abs(transformed).sum(axis=inner)
    outputs = np.einsum("eh,vw,evo->hwo", np.abs(inverse), np.abs(inverse), sums)
    return np.ascontiguousarray(transformed, dtype=np.int16) if outputs.max() < 2**31 else None
