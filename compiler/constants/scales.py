"""Batch norms and other per-channel arithmetic behind a convolution, folded into weights and one addition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import rewrite_functions, static_shape

Vector = NDArray[np.float64]


def fold_scales(mod: tvm.IRModule) -> tvm.IRModule:
    """Fold scales and shifts per channel into float convolutions with constant weights.

    ((conv2d(x, w) - mean) / std) * gamma + beta  ->  conv2d(x, w * gamma / std) + shift
    """
    with np.errstate(all="ignore"):  # weights may hold anything; what isn't finite stays unfolded
        return rewrite_functions(mod, lambda function: _ScaleFolder(mod, function).visit_expr(function))


@dataclass(frozen=True)
class _Scaled:
    """convolution * scale + shift, both per output channel."""

    convolution: Call
    scale: Vector
    shift: Vector

    def then(self, operator: str, value: Vector) -> _Scaled | None:
        """This with one more operation behind it; None when the result isn't finite."""
        scale, shift = _THEN[operator](self.scale, self.shift, value)
        finite = all(np.isfinite(values.astype(np.float32)).all() for values in (scale, shift))
        return _Scaled(self.convolution, scale, shift) if finite else None


_THEN: dict[str, Callable[[Vector, Vector, Vector], tuple[Vector, Vector]]] = {
    "relax.add": lambda scale, shift, value: (scale, shift + value),
    "relax.subtract": lambda scale, shift, value: (scale, shift - value),
    "relax.multiply": lambda scale, shift, value: (scale * value, shift * value),
    "relax.divide": lambda scale, shift, value: (scale / value, shift / value),
}
_COMMUTES = {"relax.add", "relax.multiply"}


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
        scaled = _scale_weight(chain, weight.value.numpy())
        convolution = Call(chain.convolution.op, [data, relax.const(scaled)], chain.convolution.attrs)
        return relax.op.add(self.builder_.emit(convolution), relax.const(_shift(chain)))


def _chain_ends(function: relax.Function) -> dict[Call, _Scaled]:
    """The last operation of every foldable chain, and what it computes from its convolution."""
    ends: dict[Call, _Scaled] = {}
    for block in function.body.blocks:
        if isinstance(block, relax.DataflowBlock):
            ends.update(_chain_ends_of_block(block))
    return ends


def _chain_ends_of_block(block: relax.DataflowBlock) -> dict[Call, _Scaled]:
    users = relax.analysis.udchain(block)
    chains: dict[relax.Var, _Scaled] = {}
    ends: dict[Call, _Scaled] = {}
    values: dict[relax.Var, Call] = {}
    for binding in block.bindings:
        value = binding.value
        if not isinstance(value, Call):
            continue
        values[binding.var] = value
        if _is_convolution(value):
            chains[binding.var] = _unscaled(value)
        elif (longer := _extended(value, chains)) is not None:
            source, chain = longer
            if isinstance(source, relax.DataflowVar) and len(users[source]) == 1:
                ends.pop(values[source], None)
                chains[binding.var] = ends[value] = chain
    return ends


def _unscaled(convolution: Call) -> _Scaled:
    axis = str(convolution.attrs.kernel_layout).index("O")
    channels = convolution.args[1].value.shape[axis]
    return _Scaled(convolution, np.ones(channels), np.zeros(channels))


def _extended(call: Call, chains: Mapping[relax.Var, _Scaled]) -> tuple[relax.Var, _Scaled] | None:
    """The variable that call continues the chain of, and the chain with call as its end."""
    operator = getattr(call.op, "name", "")
    if operator not in _THEN:
        return None
    for position in (0, 1) if operator in _COMMUTES else (0,):
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
    floats = str(call.ty.dtype) == str(call.args[1].ty.dtype) == "float32"
    return floats and not grouped_transpose and static_shape(call) is not None


_CONVOLUTIONS = {f"relax.nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose")}


def _per_channel(expr: relax.Expr, chain: _Scaled) -> Vector | None:
    """A constant that has one value per channel, or one for all."""
    if not isinstance(expr, GenericConst):
        return None
    value = expr.value.numpy().astype(np.float64)
    shape = list(_channel_shape(chain))
    if value.ndim > len(shape):
        return None
    padded = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if value.size != 1 and list(padded.shape) != shape:
        return None
    return np.broadcast_to(padded.reshape(-1), chain.scale.shape)


def _channel_shape(chain: _Scaled) -> tuple[int, ...]:
    layout = str(chain.convolution.attrs.out_layout or chain.convolution.attrs.data_layout)
    return tuple(chain.scale.size if axis == "C" else 1 for axis in layout)


def _scale_weight(chain: _Scaled, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    layout = str(chain.convolution.attrs.kernel_layout)
    scale = chain.scale.reshape([-1 if axis == "O" else 1 for axis in layout])
    return np.ascontiguousarray(weight * scale.astype(np.float32))


def _shift(chain: _Scaled) -> NDArray[np.float32]:
    return chain.shift.reshape(_channel_shape(chain)).astype(np.float32)
