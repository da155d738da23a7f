"""A model that runs a few times computes the same as NumPy, whichever level its kernels are compiled at."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.tirx import Evaluate, PrimFunc, Var, While

from compiler import fallback
from compiler.importing.model import fuse_operators
from compiler.target import detect_device
from compiler.verifying.kernels import QUICK_LEVEL, SLOW_LEVEL, compile_model, optimization_level


def _products(size: int) -> tvm.IRModule:
    """The maximum of 0 and a product of square matrices, and its halves."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((size, size), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, w)))
            halves = builder.emit(relax.op.astype(relax.op.nn.softmax(y), "float16"))
            output = builder.emit_output(relax.Tuple([y, halves]))
        builder.emit_func_output(output)
    return fallback.schedule_slow(fuse_operators(builder.get(), detect_device().target))


@pytest.mark.parametrize("size", [16, 128])
def test_quick_and_slow_kernels_agree_with_numpy(size: int) -> None:
    x, w = np.random.default_rng(0).standard_normal((2, size, size)).astype(np.float32)
    x[3, 5], x[7, 1] = np.nan, np.inf
    machine = compile_model(_products(size), detect_device().target)
    y, halves = (tensor.numpy() for tensor in machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)))
    with np.errstate(invalid="ignore"):
        wanted = np.maximum(x @ w, 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
    ordinary = np.isfinite(wanted).all(1)
    assert ordinary.sum() == size - 2
    np.testing.assert_allclose(halves.astype(np.float32).sum(1)[ordinary], 1, rtol=1e-2)


@pytest.mark.parametrize(("size", "level"), [(16, QUICK_LEVEL), (128, SLOW_LEVEL)])
def test_a_product_is_optimized_if_it_takes_long(size: int, level: int) -> None:
    kernels = {name.name_hint.rstrip("1"): one for name, one in _products(size).functions_items()}
    assert optimization_level(kernels["fused_matmul_relu"]) == level
    assert optimization_level(kernels["fused_softmax_cast"]) == QUICK_LEVEL


def test_a_loop_of_unknown_length_is_optimized() -> None:
    x = Var("x", "int64")
    kernel = PrimFunc([x], While(x < 9, Evaluate(0)))
    assert optimization_level(kernel) == SLOW_LEVEL
