"""A graph variant: products with constant weights read them by rows of their transpose, one an output."""

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant, rewrite_functions


class Transposed:
    """Computes products with transposed weights.

    c[i, j] = sum(a[i, k] * b[k, j])    ->    c[i, j] = sum(a[i, k] * b'[j, k])
    """

    name = "transposed"

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        rewriter = _Rewriter(operators)
        rewritten = rewrite_functions(operators, rewriter.visit_expr)
        if not rewriter.rewritten:
            return None
        for name, function in rewriter.builder_.get().functions_items():
            if isinstance(function, tvm.tirx.PrimFunc):
                rewritten[name] = function
        return rewritten


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    rewritten = 0

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if getattr(call.op, "name", "") != "relax.matmul" or not isinstance(call.args[1], GenericConst):
            return call
        rows, columns = (argument.ty for argument in call.args)
        if (rows.ndim, columns.ndim) != (2, 2) or rows.dtype != columns.dtype:
            return call
        self.rewritten += 1
        weight = constant(np.ascontiguousarray(call.args[1].value.numpy().T))
        result = self.builder_.call_te(product, call.args[0], weight, primfunc_name_hint="transposed_matmul")
        return self.builder_.normalize(result)


def product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute(
        (a.shape[0], b.shape[0]), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="transposed_matmul"
    )


TRANSPOSED = Transposed()
