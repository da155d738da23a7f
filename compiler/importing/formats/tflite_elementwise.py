"""Converters of TFLite's elementwise operators, norms and means in windows.

LiteRT computes quantized operators in integers. Here most are computed in float32 and rounded once, which
differs by at most one step. Others are looked up in LiteRT's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.formats.tflite_tables import Floats, Function, Rounding, halves_away, look_up
from compiler.importing.values import UnsupportedOperator

# Takes the importer and the operator.
Convert = Callable[[Any, Any], Any]
# The padding that keeps the extents, divided by the strides.
_SAME = 0


def _of_numbers(function: Callable[..., Any]) -> Convert:
    """Return the converter of a function of numbers: operands are dequantized, the result is quantized."""

    def convert(importer: Any, op: Any) -> Any:
        return importer.stored(op, importer.bb.normalize(function(*importer.operands(op))))

    return convert


def _from_table(function: Function, of_numbers: Convert, rounded: Rounding = halves_away) -> Convert:
    """Return the converter of a function that LiteRT looks up in a table for quantized operands."""

    def convert(importer: Any, op: Any) -> Any:
        found = look_up(importer, op, function, rounded)
        return of_numbers(importer, op) if found is None else found

    return convert


def _elu_of_floats(x: Floats, _least: np.float32) -> Floats:
    return np.where(x < 0, np.expm1(x), x)


def _exp_of_floats(x: Floats, _least: np.float32) -> Floats:
    # numpy's function of float32 is less exact than C's.
    return np.exp(x.astype(np.float64)).astype(np.float32)


def _log_of_floats(x: Floats, least: np.float32) -> Floats:
    """Return logarithms. LiteRT returns the least number for operands that aren't positive."""
    return np.where(x > 0, np.log(x.astype(np.float64)).astype(np.float32), least)


def _sqrt_of_floats(x: Floats, _least: np.float32) -> Floats:
    return np.sqrt(x)


def _elu(x: Any) -> Any:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which rounds little near zero."""
    one = relax.const(1, "float32")
    below = relax.op.minimum(x, relax.const(0, "float32"))
    half = relax.op.tanh(relax.op.multiply(below, relax.const(0.5, "float32")))
    small = relax.op.multiply(half, relax.op.add(relax.op.exp(below), one))
    return relax.op.where(relax.op.greater(x, relax.const(0, "float32")), x, small)


def _hard_swish(x: Any) -> Any:
    """x * (relu6(x + 3) / 6). The product with 6 may overflow."""
    gate = relax.op.clip(relax.op.add(x, relax.const(3, "float32")), 0, 6)
    return relax.op.multiply(x, relax.op.multiply(gate, relax.const(1 / 6, "float32")))


def _prelu(x: Any, slope: Any) -> Any:
    below = relax.op.multiply(x, slope)
    return relax.op.where(relax.op.greater_equal(x, relax.const(0, str(x.ty.dtype))), x, below)


def _square(x: Any) -> Any:
    return relax.op.multiply(x, x)


def _negate(importer: Any, op: Any) -> Any:
    """Negate stored bytes. LiteRT does so for any zero point."""
    (tensor,) = importer.get_input_tensors(op)
    if tensor.qnn_params and (zero := int(tensor.qnn_params["zero_point"].value.numpy())):
        raise UnsupportedOperator(f"LiteRT ignores its zero point {zero}: quantize it with the zero point 0")
    return relax.op.negative(importer.get_tensor_expr(tensor))


def _l2_normalization(x: Any) -> Any:
    """Divide by the norm along the last axis, but at least by 1e-6."""
    norm = relax.op.sqrt(relax.op.sum(_square(x), -1, True))
    return relax.op.divide(x, relax.op.maximum(norm, relax.const(1e-6, "float32")))


def _fake_quant(importer: Any, op: Any) -> Any:
    """Round to the numbers that integers of some bits represent. The range is moved to contain zero."""
    options = importer.options(op, "FakeQuantOptions")
    (x,) = importer.operands(op)
    low, high, steps = (
        np.float32(number) for number in (options.Min(), options.Max(), 2 ** options.NumBits() - 1)
    )
    if options.NarrowRange():
        raise UnsupportedOperator("its attribute narrow_range isn't supported: leave it out")
    scale = (high - low) / steps
    zero = np.clip(np.floor(-low / scale + np.float32(0.5)), 0, steps)
    low, high = -zero * scale, (steps - zero) * scale
    shifted = relax.op.subtract(relax.op.clip(x, float(low), float(high)), relax.const(low, "float32"))
    half = relax.const(0.5, "float32")
    counts = relax.op.floor(relax.op.add(relax.op.divide(shifted, relax.const(scale, "float32")), half))
    return relax.op.add(relax.op.multiply(counts, relax.const(scale, "float32")), relax.const(low, "float32"))


def _average_pool(importer: Any, op: Any) -> Any:
    """Average elements within bounds. Means of bytes are rounded to the nearest, halves away from zero."""
    (tensor,) = importer.get_input_tensors(op)
    (output,) = importer.get_output_tensors(op)
    if not tensor.qnn_params:
        return importer.convert_pool2d(op, pool_type="average")
    if not importer.has_same_qnn_params(tensor, output):
        raise UnsupportedOperator("its operand and its result are quantized in different ways")
    options = importer.options(op, "Pool2DOptions")
    window, strides = (
        (options.FilterHeight(), options.FilterWidth()),
        (options.StrideH(), options.StrideW()),
    )
    edges = [(0, 0), (0, 0)]
    if options.Padding() == _SAME:
        shape, wanted = importer.declared_shape(tensor)[1:3], importer.declared_shape(output)[1:3]
        whole = [
            max((count - 1) * stride + size - extent, 0)
            for count, stride, size, extent in zip(wanted, strides, window, shape, strict=True)
        ]
        edges = [(width // 2, width - width // 2) for width in whole]
    dtype = importer.get_tensor_type_str(output.tensor.Type())
    mean = relax.op.nn.avg_pool2d(
        relax.op.astype(importer.get_tensor_expr(tensor), "float32"),
        pool_size=window,
        strides=strides,
        padding=[*(low for low, _ in edges), *(high for _, high in edges)],
        layout="NHWC",
    )
    mean = importer.bb.emit(mean)
    half = relax.const(0.5, "float32")
    away = relax.op.floor(relax.op.add(relax.op.abs(mean), half))
    rounded = relax.op.astype(relax.op.multiply(relax.op.sign(mean), away), dtype)
    return importer.convert_qnn_fused_activation_function(
        expr=importer.bb.normalize(rounded),
        fused_activation_fn=options.FusedActivationFunction(),
        scale=float(output.qnn_params["scale"].value.numpy()),
        zero_point=int(output.qnn_params["zero_point"].value.numpy()),
        dtype=dtype,
    )


def _floor_mod(x: Any, y: Any) -> Any:
    """Return the remainder with the divisor's sign. TVM returns NaN for an infinite divisor."""
    if "float" not in str(x.ty.dtype):
        return relax.op.floor_mod(x, y)
    zero = relax.const(0, str(x.ty.dtype))
    rest = relax.op.mod(x, y)
    has_other_sign = relax.op.less(relax.op.multiply(relax.op.sign(rest), relax.op.sign(y)), zero)
    return relax.op.where(has_other_sign, relax.op.add(rest, y), rest)


CONVERTERS: Mapping[str, Convert] = {
    "AVERAGE_POOL_2D": _average_pool,
    "ELU": _from_table(_elu_of_floats, _of_numbers(_elu)),
    "EXP": _from_table(_exp_of_floats, _of_numbers(relax.op.exp)),
    "FAKE_QUANT": _fake_quant,
    "FLOOR_MOD": _of_numbers(_floor_mod),
    "HARD_SWISH": _of_numbers(_hard_swish),
    "LOG": _from_table(_log_of_floats, _of_numbers(relax.op.log)),
    "L2_NORMALIZATION": _of_numbers(_l2_normalization),
    "NEG": _negate,
    "PRELU": _of_numbers(_prelu),
    "RELU_0_TO_1": _of_numbers(lambda x: relax.op.clip(x, 0, 1)),
    "SIGN": _of_numbers(relax.op.sign),
    "SQRT": _from_table(_sqrt_of_floats, _of_numbers(relax.op.sqrt), np.trunc),
    "SQUARE": _of_numbers(_square),
}
