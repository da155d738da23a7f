"""Operators in layouts that TVM can lower."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import Call

from compiler.constants.fold import rewrite_functions

# Transposed convolutions are lowered channels-first only: what computes one, and in which layouts.
_CHANNELS_FIRST: dict[str, tuple[Callable[..., relax.Expr], str, str]] = {
    "relax.nn.conv1d_transpose": (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    "relax.nn.conv2d_transpose": (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
    "relax.nn.conv3d_transpose": (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


def convert_unsupported_layouts(mod: tvm.IRModule) -> tvm.IRModule:
    """After layout conversion, which gives operators the layouts of their neighbours.

    conv2d_transpose(x, w, "NHWC")  ->  permute_dims(conv2d_transpose(permute_dims(x), w, "NCHW"))
    """
    return rewrite_functions(mod, lambda function: _ChannelsFirst(mod).visit_expr(function))


@relax.expr_functor.mutator
class _ChannelsFirst(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        known = _CHANNELS_FIRST.get(getattr(call.op, "name", ""))
        if known is None:
            return call
        compute, data_layout, kernel_layout = known
        attrs = call.attrs
        if (attrs.data_layout, attrs.out_layout, attrs.kernel_layout) == (
            data_layout,
            data_layout,
            kernel_layout,
        ):
            return call
        data, kernel = call.args
        result = compute(
            _permuted(data, attrs.data_layout, data_layout),
            _permuted(kernel, attrs.kernel_layout, kernel_layout),
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            output_padding=list(attrs.output_padding),
            dilation=list(attrs.dilation),
            groups=attrs.groups,
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_layout=data_layout,
            out_dtype=attrs.out_dtype,
        )
        return self.builder_.normalize(_permuted(result, data_layout, attrs.out_layout))


def _permuted(tensor: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    if layout == wanted:
        return tensor
    return relax.op.permute_dims(tensor, [layout.index(axis) for axis in wanted])
