"""A variant that pads matrix products with columns of zeros, so that tiles divide them."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, GenericConst

from compiler.constants.fold import static_shape
from compiler.variants.rewriting import Kernel, rewrite_calls
from search.sketches.factors import GOOD_VECTORS

# The number of columns is padded to a multiple of this, which many tile sizes divide.
ROUND_TO = 128
# With fewer rows, a product streams its weights once with any tiles. With few columns, a partial tile costs
# little.
MIN_ROWS, MIN_COLUMNS = 16, 1024


class PaddedColumns:
    """Adds columns of zeros to constant weights, such as the weights of a vocabulary of 50,257 words.

        c[i, j] = sum(a[i, k] * b[k, j])            j < 50257
    ->
        p[i, j] = sum(a[i, k] * b'[k, j])           j < 50304
        c[i, j] = p[i, j]                           j < 50257

    If no divisor makes a good tile, the last tile is partial, and only the loop around it can be split off.
    Then the columns are one loop inside the loop of the rows, and each iteration streams all weights.
    """

    name = "padded"
    exact = True

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the products that `applies` accepts; None if there are none."""
        return rewrite_calls(operators, self.name, _kernel)


def applies(call: Call) -> bool:
    """Return whether a call multiplies several rows by a constant float32 matrix whose many columns the
    search would cover with a partial tile.
    """
    if getattr(call.op, "name", "") != "relax.matmul" or static_shape(call) is None:
        return False
    shape, weight = static_shape(call.args[0]), call.args[1]
    if shape is None or len(shape) < 2 or not isinstance(weight, GenericConst):
        return False
    columns = static_shape(weight)
    return (
        columns is not None
        and len(columns) == 2
        and {str(one.ty.dtype) for one in (*call.args, call)} == {"float32"}
        and shape[-2] >= MIN_ROWS
        and columns[1] >= MIN_COLUMNS
        and columns[1] % GOOD_VECTORS[0] != 0
    )


def _kernel(call: Call) -> Kernel | None:
    if not applies(call):
        return None
    data, weight = call.args
    matrix = weight.value.numpy()
    columns = matrix.shape[1]
    padded = np.pad(matrix, ((0, 0), (0, -columns % ROUND_TO)))

    def compute(left: te.Tensor, right: te.Tensor) -> te.Tensor:
        return padded_product(left, right, columns)

    return Kernel(compute, (data, relax.const(padded)))


def padded_product(left: te.Tensor, right: te.Tensor, columns: int) -> te.Tensor:
    """Return the first columns of the product of [*batch, m, n] and [n, o]."""
    k = te.reduce_axis((0, int(left.shape[-1])), "k")

    def multiply(*place: tirx.Expr) -> tirx.Expr:
        *rows, column = place
        return te.sum(left[(*rows, k)] * right[k, column], axis=[k])

    products = te.compute((*left.shape[:-1], right.shape[1]), multiply, name="products")
    return te.compute((*left.shape[:-1], columns), lambda *place: products[place], name="product")
