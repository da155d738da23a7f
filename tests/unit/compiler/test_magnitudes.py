"""Scales and shifts of quantized workloads are drawn so that the results are ordinary bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from compiler.measuring.random_inputs import InputKind, parameters


def _bytes_of(values: te.Tensor, dtype: str) -> te.Tensor:
    limits = np.iinfo(dtype)
    low, high = (tirx.const(float(bound), "float32") for bound in (limits.min, limits.max))
    rounded = te.compute(values.shape, lambda *at: tirx.nearbyint(values(*at)), name="rounded")
    raised = te.compute(values.shape, lambda *at: tirx.Max(rounded(*at), low), name="raised")
    clamped = te.compute(values.shape, lambda *at: tirx.Min(raised(*at), high), name="clamped")
    return topi.cast(clamped, dtype)


def _scaled(sums: te.Tensor, channels: int, dtype: str) -> list[te.Tensor]:
    scale, bias = (te.placeholder((channels,), name=name) for name in ("scale", "bias"))
    return [scale, bias, _bytes_of(topi.add(topi.multiply(topi.cast(sums, "float32"), scale), bias), dtype)]


def convolution(channels: int, dtype: str = "uint8") -> list[te.Tensor]:
    data = te.placeholder((1, 9, 9, 16), "uint8", name="data")
    weight = te.placeholder((3, 3, 16, channels), "int8", name="weight")
    sums = topi.nn.conv2d(data, weight, 1, 1, 1, "NHWC", "HWIO", out_dtype="int32")
    return [data, weight, *_scaled(sums, channels, dtype)]


def product(dtype: str = "uint8") -> list[te.Tensor]:
    a, b = te.placeholder((16, 512), "uint8", name="a"), te.placeholder((512, 24), "int8", name="b")
    k = te.reduce_axis((0, 512), name="k")
    sums = te.compute(
        (16, 24), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k), name="sums"
    )
    return [a, b, *_scaled(sums, 24, dtype)]


def depthwise() -> list[te.Tensor]:
    data = te.placeholder((1, 9, 9, 16), "uint8", name="data")
    weight, bias = te.placeholder((3, 3, 16), name="weight"), te.placeholder((16,), name="bias")
    ky, kx = te.reduce_axis((0, 3), name="ky"), te.reduce_axis((0, 3), name="kx")
    wide = topi.cast(data, "float32")
    sums = te.compute(
        (1, 7, 7, 16),
        lambda n, y, x, c: te.sum(wide[n, y + ky, x + kx, c] * weight[ky, kx, c], [ky, kx]),
        name="sums",
    )
    return [data, weight, bias, _bytes_of(topi.add(sums, bias), "uint8")]


def sum_of_two() -> list[te.Tensor]:
    a, b = (te.placeholder((16, 24), "uint8", name=name) for name in "ab")
    scales = [te.placeholder((1, 1), name=f"scale{k}") for k in range(2)]
    zeros = [te.placeholder((1, 1), name=f"zero{k}") for k in range(2)]
    restored = [
        topi.multiply(topi.subtract(topi.cast(x, "float32"), zero), scale)
        for x, scale, zero in zip((a, b), scales, zeros, strict=True)
    ]
    shift = te.placeholder((1, 1), name="shift")
    return [a, b, *scales, *zeros, shift, _bytes_of(topi.add(topi.add(*restored), shift), "uint8")]


WORKLOADS: dict[str, Callable[[], list[te.Tensor]]] = {
    "convolution": lambda: convolution(24),
    "signed convolution": lambda: convolution(24, "int8"),
    "product": product,
    "signed product": lambda: product("int8"),
    "depthwise convolution": depthwise,
    "one scale": lambda: convolution(1),
    "sum": sum_of_two,
}


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("kind", [InputKind.ORDINARY, InputKind.LARGE])
def test_few_bytes_are_at_the_ends_of_their_type(name: str, kind: InputKind) -> None:
    """Large values are four times larger, and bytes are at the ends of their range."""
    function = te.create_prim_func(WORKLOADS[name]())
    arrays = [tvm.runtime.tensor(array) for array in kind.arrays(parameters(function))]
    tvm.compile(tvm.IRModule({"main": function}), target="llvm")["main"](*arrays)
    result = arrays[-1].numpy()
    limits = np.iinfo(result.dtype)
    share = np.mean((result == limits.min) | (result == limits.max))
    assert share < (0.1 if kind is InputKind.ORDINARY else 0.5)
    assert len(np.unique(result)) > (30 if kind is InputKind.ORDINARY else 5)


def test_a_restored_value_is_about_one() -> None:
    data, scale = te.placeholder((64, 64), "int8", name="data"), te.placeholder((1, 1), name="scale")
    zero = te.placeholder((1, 1), name="zero")
    restored = topi.multiply(topi.subtract(topi.cast(data, "float32"), zero), scale)
    function: Any = te.create_prim_func([data, scale, zero, topi.tanh(restored)])
    bytes_, factor, shift, _ = InputKind.ORDINARY.arrays(parameters(function))
    values = (bytes_.astype(float) - shift) * factor
    assert 0.4 < np.std(values) < 1.6
    assert abs(np.mean(values)) < 0.2
