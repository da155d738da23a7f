"""Sum halves in float32.

Sums of elements are float32 everywhere. So are sums of products, except sums of float16 on CPUs with float16
arithmetic. Other CPUs convert every operand to float32 and every result back. A sum in float32 converts its
operands only, and rounds once, as ONNX Runtime does. Tensor cores do the same.
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
HALVES = frozenset({"float16", "bfloat16"})
# By operator: its constructor and its attributes.
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
# Operators that sum or multiply elements of one tensor, and operators composed of these.
REDUCTIONS = frozenset(
    f"relax.{name}"
    for name in (
        *("sum", "mean", "prod", "variance", "std"),
        *("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        *("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d"),
        *("nn.softmax", "nn.log_softmax"),
        *("nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm"),
    )
)

# Operators with the type of their result as an attribute.
SCANS = {"relax.cumsum": relax.op.cumsum, "relax.cumprod": relax.op.cumprod}


def reduce_in_floats(mod: tvm.IRModule) -> tvm.IRModule:
    """Let operators that sum elements of halves compute in float32, and round their result once.

        gv = sum(x)                                   # x: Tensor((1, 64), "float16")
    ->
        lv = astype(x, "float32")
        lv1 = sum(lv)
        gv = astype(lv1, "float16")
    """
    found: list[Call] = []
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(
                function, lambda expr: found.append(expr) if _reduces_halves(expr) else None
            )
    return rewrite_functions(mod, lambda function: _Reductions(mod).visit_expr(function)) if found else mod


@relax.expr_functor.mutator
class _Reductions(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not _reduces_halves(op):
            return call
        wide = [
            relax.op.astype(argument, "float32") if _is_half(argument) else argument for argument in call.args
        ]
        if (scan := SCANS.get(call.op.name)) is not None:
            result = scan(wide[0], call.attrs.axis, "float32", call.attrs.exclusive)
        else:
            result = Call(call.op, wide, call.attrs)
        return relax.op.astype(self.builder_.emit(result), str(op.ty.dtype))


def _reduces_halves(expr: relax.Expr) -> bool:
    name = getattr(getattr(expr, "op", None), "name", "")
    return (name in REDUCTIONS or name in SCANS) and _is_half(expr)


def _is_half(expr: relax.Expr) -> bool:
    return str(getattr(expr.ty, "dtype", "")) in HALVES


def sum_in_floats(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Let convolutions and matrix products of halves sum in float32.

    Sums of float16 keep their type on a CPU with float16 arithmetic.

        gv = matmul(x, w)                             # x: Tensor((1, 64), "float16")
    ->
        lv = matmul(x, w, out_dtype="float32")
        gv = astype(lv, "float16")
    """
    halves = HALVES if not HALF_ARITHMETIC & target_features(target) else frozenset({"bfloat16"})
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
