"""Fold per-channel arithmetic after a convolution, such as batch norms, into its weights and one addition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import rewrite_functions, static_shape

Vector = NDArray[np.float64]


def fold_scales(mod: tvm.IRModule) -> tvm.IRModule:
    """Fold scales and shifts per channel into convolutions with constant weights and sums of float32.

        lv = conv2d(x, w)
        lv1 = subtract(lv, mean)
        lv2 = divide(lv1, std)
        lv3 = multiply(lv2, gamma)
        gv = add(lv3, beta)
    ->
        lv = conv2d(x, w * gamma / std)
        gv = add(lv, beta - mean * gamma / std)

    The scale of halves stays a multiplication, because their products with it would be rounded again.
    """
    # Weights may hold any values. A chain whose scale or shift isn't finite is not folded.
    with np.errstate(all="ignore"):
        return rewrite_functions(mod, lambda function: _ScaleFolder(mod, function).visit_expr(function))


@dataclass(frozen=True)
class _ScaledConvolution:
    """The value of `convolution * scale + shift`, both per output channel; `name` is the convolution's
    variable."""

    convolution: Call
    name: str
    scale: Vector
    shift: Vector

    def then(self, operator: str, value: Vector) -> _ScaledConvolution | None:
        """Apply one more operation; None when the result isn't finite."""
        scale, shift = _APPLY[operator](self.scale, self.shift, value)
        finite = all(np.isfinite(values.astype(np.float32)).all() for values in (scale, shift))
        return replace(self, scale=scale, shift=shift) if finite else None

    @property
    def channel_shape(self) -> tuple[int, ...]:
        """The shape of one value per channel that broadcasts over the convolution's output."""
        layout = str(self.convolution.attrs.out_layout or self.convolution.attrs.data_layout)
        return tuple(self.scale.size if axis == "C" else 1 for axis in layout)


_APPLY: dict[str, Callable[[Vector, Vector, Vector], tuple[Vector, Vector]]] = {
    "relax.add": lambda scale, shift, value: (scale, shift + value),
    "relax.subtract": lambda scale, shift, value: (scale, shift - value),
    "relax.multiply": lambda scale, shift, value: (scale * value, shift * value),
    "relax.divide": lambda scale, shift, value: (scale / value, shift / value),
}
_COMMUTATIVE = {"relax.add", "relax.multiply"}


@relax.expr_functor.mutator
class _ScaleFolder(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod)
        self.ends = _chain_ends(function)

    def visit_call_(self, op: Call) -> relax.Expr:
        chain = self.ends.get(op)
        if chain is None:
            return self.visit_expr_post_order(op)
        data, weight = self.visit_expr_post_order(chain.convolution).args
        scale, shift = (
            one.reshape(chain.channel_shape).astype(np.float32) for one in (chain.scale, chain.shift)
        )
        if str(weight.ty.dtype) == "float32":
            layout = str(chain.convolution.attrs.kernel_layout)
            by_output = scale.reshape([-1 if axis == "O" else 1 for axis in layout])
            weight = relax.const(np.ascontiguousarray(weight.value.numpy() * by_output))
            scale = np.ones_like(scale)
        result = Call(chain.convolution.op, [data, weight], chain.convolution.attrs)
        if np.any(scale != 1):
            result = relax.op.multiply(self.builder_.emit(result, chain.name), relax.const(scale))
        return relax.op.add(self.builder_.emit(result, chain.name), relax.const(shift))


def _chain_ends(function: relax.Function) -> dict[Call, _ScaledConvolution]:
    """Map the last operation of every foldable chain to the chain's effect on its convolution."""
    ends: dict[Call, _ScaledConvolution] = {}
    for block in function.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            continue
        users = relax.analysis.udchain(block)
        chains: dict[relax.Var, _ScaledConvolution] = {}
        values: dict[relax.Var, Call] = {}
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, Call):
                continue
            values[binding.var] = value
            if _is_convolution(value):
                channels = value.args[1].value.shape[str(value.attrs.kernel_layout).index("O")]
                chains[binding.var] = _ScaledConvolution(
                    value, str(binding.var.name), np.ones(channels), np.zeros(channels)
                )
                continue
            extended = _extend(value, chains)
            if extended is None:
                continue
            source, chain = extended
            # Other users of the value in between would need it unfolded.
            if isinstance(source, relax.DataflowVar) and len(users[source]) == 1:
                ends.pop(values[source], None)
                chains[binding.var] = ends[value] = chain
    return ends


def _extend(
    call: Call, chains: Mapping[relax.Var, _ScaledConvolution]
) -> tuple[relax.Var, _ScaledConvolution] | None:
    """Return the variable whose chain the call continues, and the chain with the call as its end."""
    operator = getattr(call.op, "name", "")
    if operator not in _APPLY:
        return None
    for position in (0, 1) if operator in _COMMUTATIVE else (0,):
        chain = chains.get(call.args[position])
        if chain is not None and static_shape(call) == static_shape(chain.convolution):
            value = _per_channel(call.args[1 - position], chain)
            longer = None if value is None else chain.then(operator, value)
            return None if longer is None else (call.args[position], longer)
    return None


def _is_convolution(call: Call) -> bool:
    name = getattr(call.op, "name", "")
    if name not in _CONVOLUTIONS or not isinstance(call.args[1], GenericConst):
        return False
    grouped_transpose = name.endswith("_transpose") and int(call.attrs.groups) != 1
    types = str(call.ty.dtype), str(call.args[1].ty.dtype)
    floats = types in (("float32", "float32"), ("float32", "bfloat16"), ("float32", "float16"))
    return floats and not grouped_transpose and static_shape(call) is not None


_CONVOLUTIONS = {f"relax.nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose")}


def _per_channel(expr: relax.Expr, chain: _ScaledConvolution) -> Vector | None:
    """Return a constant's values per channel; None unless it has one for each channel or one for all."""
    if not isinstance(expr, GenericConst):
        return None
    value = expr.value.numpy().astype(np.float64)
    shape = list(chain.channel_shape)
    if value.ndim > len(shape):
        return None
    padded = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if value.size != 1 and list(padded.shape) != shape:
        return None
    return np.broadcast_to(padded.reshape(-1), chain.scale.shape)
