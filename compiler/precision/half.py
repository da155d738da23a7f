"""Add up products of halves in float32 where the device has no arithmetic in halves, and on GPUs.

Such a device converts every operand to float32 and every result back. A sum in float32 converts its operands
only, and rounds once, as ONNX Runtime does. The tensor cores of GPUs add up so by themselves, those of
bfloat16 no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import tvm
from tvm import relax
from tvm.ir import Call

from compiler.constants.fold import rewrite_functions
from compiler.target import target_features

# The instruction sets that compute in halves, as Linux names them.
HALF_ARITHMETIC = frozenset({"avx512_fp16", "asimdhp"})
# By operator, its own constructor and the attributes that it takes.
_CONVOLUTION = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
_TRANSPOSED = (*_CONVOLUTION, "output_padding")
SUMS: dict[str, tuple[Callable[..., relax.Expr], tuple[str, ...]]] = {
    "relax.matmul": (relax.op.matmul, ()),
    "relax.nn.conv1d": (relax.op.nn.conv1d, _CONVOLUTION),
    "relax.nn.conv2d": (relax.op.nn.conv2d, _CONVOLUTION),
    "relax.nn.conv3d": (relax.op.nn.conv3d, _CONVOLUTION),
    "relax.nn.conv1d_transpose": (relax.op.nn.conv1d_transpose, _TRANSPOSED),
    "relax.nn.conv2d_transpose": (relax.op.nn.conv2d_transpose, _TRANSPOSED),
}


def sum_in_floats(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Have convolutions and matrix products of halves sum in float32, on CPUs without arithmetic in halves
    those of float16, on GPUs those of bfloat16, too.

        gv = matmul(x, w)                             # x: Tensor((1, 64), "float16")
    ->
        lv = matmul(x, w, out_dtype="float32")
        gv = astype(lv, "float16")
    """
    halves = {"float16", "bfloat16"} if target.kind.name == "cuda" else {"float16"}
    if HALF_ARITHMETIC & target_features(target):
        return mod
    return rewrite_functions(mod, lambda function: _Sums(mod, halves).visit_expr(function))


@relax.expr_functor.mutator
class _Sums(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, halves: Collection[str]) -> None:
        super().__init__(mod)
        self._halves = halves

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = getattr(call.op, "name", "")
        tensors = [op, *call.args] if name in SUMS else []
        types = {str(tensor.ty.dtype) for tensor in tensors}
        if len(types) != 1 or not types.issubset(self._halves):
            return call
        compute, attributes = SUMS[name]
        given = {key: getattr(call.attrs, key) for key in attributes}
        wide = self.builder_.emit(compute(*call.args, **given, out_dtype="float32"))
        return relax.op.astype(wide, types.pop())
