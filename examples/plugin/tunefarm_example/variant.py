"""A graph variant: matrix products read constant weights from their transpose, one row per output column."""

import numpy as np
import tvm
from tvm import te
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant
from compiler.variants.rewriting import Kernel, rewrite_calls


class Transposed:
    """Computes matrix products with transposed weights.

    c[i, j] = sum(a[i, k] * b[k, j])    ->    c[i, j] = sum(a[i, k] * b'[j, k])
    """

    name = "transposed"
    exact = True

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        return rewrite_calls(operators, self.name, kernel)


def kernel(call: Call) -> Kernel | None:
    if getattr(call.op, "name", "") != "relax.matmul" or not isinstance(call.args[1], GenericConst):
        return None
    rows, columns = (argument.ty for argument in call.args)
    if (rows.ndim, columns.ndim) != (2, 2) or rows.dtype != columns.dtype:
        return None
    weight = constant(np.ascontiguousarray(call.args[1].value.numpy().T))
    return Kernel(product, (call.args[0], weight))


def product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute(
        (a.shape[0], b.shape[0]), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="transposed_matmul"
    )


TRANSPOSED = Transposed()
