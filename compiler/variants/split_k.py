"""Matrix products whose sums the blocks of a GPU share."""

from __future__ import annotations

import math

import tvm
from tvm import te, tirx
from tvm.ir import Call

from compiler.constants.fold import static_shape
from compiler.variants.rewriting import Kernel, rewrite_calls

# A part of a shorter sum takes less time than adding up the parts.
MIN_PART = 64


class SplitK:
    """Computes matrix products with few results and long sums in parts, so that enough blocks have work.

        c[i, j] = sum(a[i, k] * b[k, j])                             k < n
    ->
        partial[s, i, j] = sum(a[i, s * n' + k] * b[s * n' + k, j])  k < n' = n / parts
        c[i, j] = sum(partial[s, i, j])                              s < parts
    """

    exact = True

    def __init__(self, parts: int) -> None:
        self.name = f"split_k_{parts}"
        self._parts = parts

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the products that `applies` accepts; None when there is none."""
        return rewrite_calls(operators, self.name, self._kernel)

    def _kernel(self, call: Call) -> Kernel | None:
        if not applies(call, self._parts):
            return None

        def compute(left: te.Tensor, right: te.Tensor) -> te.Tensor:
            return split_product(left, right, self._parts)

        return Kernel(compute, tuple(call.args))


def applies(call: Call, parts: int) -> bool:
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
        and {str(one.ty.dtype) for one in (*call.args, call)} == {"float32"}
        and summed >= 2 * math.isqrt(results)
        and summed % parts == 0
        and summed // parts >= MIN_PART
    )


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
