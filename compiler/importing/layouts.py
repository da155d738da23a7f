"""Convert operators to layouts that TVM can lower."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import Call

from compiler.constants.fold import bound_call, rewrite_functions

# TVM lowers transposed convolutions channels-first only: the operator, and its layouts of data and kernel.
_CHANNELS_FIRST: dict[str, tuple[Callable[..., relax.Expr], str, str]] = {
    "relax.nn.conv1d_transpose": (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    "relax.nn.conv2d_transpose": (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
    "relax.nn.conv3d_transpose": (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}

# Operators that a permutation of both operands and one of the result commute with.
_ELEMENTWISE = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")


def count_axes_from_zero(mod: tvm.IRModule) -> tvm.IRModule:
    """Number axes from the front. TVM's conversion of layouts (0.27) expects that for these operators.
    Otherwise it fills the memory or fails. It fails at any stack.

        lv = squeeze(x, axis=[-2])
        gv = stack((lv, lv), axis=-1)
    ->
        lv = squeeze(x, axis=[2])
        lv1 = expand_dims(lv, axis=[3])
        gv = concat((lv1, lv1), axis=3)
    """
    return rewrite_functions(mod, lambda function: _FromZero(mod).visit_expr(function))


def convert_unsupported_layouts(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute transposed convolutions channels-first, and pad and add where layouts are converted back. The
    layout conversion before gives operators the layouts of their neighbours, except pads, and operators
    between permutations of the model's own.

        gv = conv2d_transpose(x, w, data_layout="NHWC", kernel_layout="IOHW")
    ->
        lv = permute_dims(x, axes=[0, 3, 1, 2])
        lv1 = conv2d_transpose(lv, w, data_layout="NCHW", kernel_layout="IOHW")
        gv = permute_dims(lv1, axes=[0, 2, 3, 1])

        lv = permute_dims(x, axes=[0, 3, 1, 2])
        lv1 = nn.pad(lv, (0, 0, 0, 0, 1, 1, 1, 1))
        gv = permute_dims(lv1, axes=[0, 2, 3, 1])
    ->
        gv = nn.pad(x, (0, 0, 1, 1, 1, 1, 0, 0))

        lv = permute_dims(x, axes=[0, 3, 1, 2])
        lv1 = permute_dims(y, axes=[0, 3, 1, 2])
        lv2 = add(lv, lv1)
        gv = permute_dims(lv2, axes=[0, 2, 3, 1])
    ->
        gv = add(x, y)
    """
    return rewrite_functions(mod, lambda function: _Converter(mod).visit_expr(function))


@relax.expr_functor.mutator
class _FromZero(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        match getattr(call.op, "name", ""):
            case "relax.squeeze" if call.attrs.axis is not None:
                axes = [int(axis) % call.args[0].ty.ndim for axis in call.attrs.axis]
                return self.builder_.normalize(relax.op.squeeze(call.args[0], axes))
            case "relax.permute_dims" if call.attrs.axes is not None:
                axes = [int(axis) % call.args[0].ty.ndim for axis in call.attrs.axes]
                return self.builder_.normalize(relax.op.permute_dims(call.args[0], axes))
            case "relax.stack":
                axis = int(call.attrs.axis) % call.ty.ndim
                parts = [self.builder_.emit(relax.op.expand_dims(part, axis)) for part in call.args[0]]
                return self.builder_.normalize(relax.op.concat(parts, axis))
        return call


@relax.expr_functor.mutator
class _Converter(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if getattr(call.op, "name", "") == "relax.permute_dims":
            padded = self._padded(call)
            return self._permuted_once(call) if padded is None else padded
        if getattr(call.op, "name", "") in _ELEMENTWISE:
            return self._permuted_after(call)
        lowerable = _CHANNELS_FIRST.get(getattr(call.op, "name", ""))
        if lowerable is None:
            return call
        compute, data_layout, kernel_layout = lowerable
        attrs = call.attrs
        layouts = attrs.data_layout, attrs.out_layout, attrs.kernel_layout
        if layouts == (data_layout, data_layout, kernel_layout):
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

    def _padded(self, call: Call) -> relax.Expr | None:
        """Return a pad without the permutations before and after it; None for other permutations."""
        pad = bound_call(self, call.args[0], "nn.pad")
        before = None if pad is None else bound_call(self, pad.args[0], "permute_dims")
        if pad is None or before is None:
            return None
        first, second = _axes(before), _axes(call)
        if [first[axis] for axis in second] != [*range(len(first))]:
            return None
        widths = [int(extent) for extent in pad.attrs.pad_width]
        moved = [extent for axis in second for extent in widths[2 * axis : 2 * axis + 2]]
        return relax.op.nn.pad(before.args[0], moved, pad.attrs.pad_mode, pad.attrs.pad_value)

    def _permuted_once(self, call: Call) -> relax.Expr:
        """Return one permutation for two, or their operand if the second undoes the first."""
        before = self._permutation(call.args[0])
        if before is None:
            return call
        first = _axes(before)
        axes = [first[axis] for axis in _axes(call)]
        source = before.args[0]
        return source if axes == [*range(len(axes))] else relax.op.permute_dims(source, axes)

    def _permuted_after(self, call: Call) -> relax.Expr:
        """Return the permuted result of an operator of two equally permuted operands; other calls
        unchanged."""
        left, right = map(self._permutation, call.args)
        if left is None or right is None or _axes(left) != _axes(right):
            return call
        result = self.builder_.emit(Call(call.op, [left.args[0], right.args[0]], call.attrs, call.ty_args))
        return self.builder_.normalize(relax.op.permute_dims(result, _axes(left)))

    def _permutation(self, expr: relax.Expr) -> Call | None:
        """Return the permutation that a variable is bound to, also by another name; None for others."""
        while isinstance(expr, relax.Var) and isinstance(bound := self.lookup_binding(expr), relax.Var):
            expr = bound
        return bound_call(self, expr, "permute_dims")


def _axes(call: Call) -> list[int]:
    """Return the axes of a `permute_dims`, counted from the front."""
    rank = call.ty.ndim
    return [int(axis) % rank for axis in call.attrs.axes or reversed(range(rank))]


def _permuted(tensor: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    if layout == wanted:
        return tensor
    return relax.op.permute_dims(tensor, [layout.index(axis) for axis in wanted])
