"""Replace calls of operators by kernels of a variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax.expr import Expr

from compiler.constants.fold import rewrite_functions

# TVM's OpPatternKind kOutEWiseFusable: elementwise operators are fused with the result.
FUSES_ELEMENTWISE = 4


@dataclass(frozen=True)
class Kernel:
    """A tensor expression that replaces a call, and its arguments."""

    compute: Callable[..., te.Tensor]
    arguments: tuple[Expr, ...]


def rewrite_calls(
    operators: tvm.IRModule, name: str, kernel_of: Callable[[Call], Kernel | None]
) -> tvm.IRModule | None:
    """Replace every call for which there is a kernel by that kernel, named after `name` and the operator;
    None if there are none.

        gv = conv2d(x, w)
    ->
        gv = call_tir(winograd_4_conv2d, (x, w'))
    """
    rewriter = _Rewriter(operators, name, kernel_of)
    rewritten = rewrite_functions(operators, rewriter.visit_expr)
    if not rewriter.rewritten:
        return None
    for variable, function in rewriter.builder_.get().functions_items():
        if isinstance(function, tirx.PrimFunc):
            rewritten[variable] = function
    return rewritten


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, module: tvm.IRModule, name: str, kernel_of: Callable[[Call], Kernel | None]) -> None:
        super().__init__(module)
        self._name = name
        self._kernel_of = kernel_of
        self.rewritten = 0

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        kernel = self._kernel_of(call)
        if kernel is None:
            return call
        self.rewritten += 1
        return self.builder_.normalize(
            self.builder_.call_te(
                kernel.compute,
                *kernel.arguments,
                primfunc_name_hint=f"{self._name}_{call.op.name.rpartition('.')[-1]}",
                primfunc_attrs={"op_pattern": FUSES_ELEMENTWISE},
            )
        )
