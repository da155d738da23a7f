from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

from compiler.fallback import schedule


def _module(*tensors: Any) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def _convolution() -> tvm.IRModule:
    x, w = te.placeholder((1, 16, 16, 8), name="x"), te.placeholder((3, 3, 8, 16), name="w")
    return _module(x, w, topi.nn.relu(topi.nn.conv2d(x, w, 1, 1, 1, "NHWC", "HWIO")))


def _softmax() -> tvm.IRModule:
    x = te.placeholder((64, 128), name="x")
    return _module(x, topi.nn.softmax(x))


def _sum_of_all() -> tvm.IRModule:
    x = te.placeholder((100, 100), name="x")
    return _module(x, topi.sum(x))


def _gather() -> tvm.IRModule:
    x, indices = te.placeholder((50, 200), name="x"), te.placeholder((70,), "int32", name="indices")
    return _module(x, indices, topi.take(x, indices, 0, mode="clip"))


def _scalar() -> tvm.IRModule:
    x = te.placeholder((), name="x")
    return _module(x, topi.exp(x))


def _prefix_sums() -> tvm.IRModule:
    """Every iteration reads what the one before wrote: running it in parallel would be wrong."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((9000,), "float32"), y: T.Buffer((9000,), "float32")):
        for i in range(9000):
            with T.sblock("prefix"):
                vi = T.axis.opaque(9000, i)
                y[vi] = T.if_then_else(vi > 0, y[vi - 1], T.float32(0)) + x[vi]

    return tvm.IRModule({"main": main})


CASES = [_convolution, _softmax, _sum_of_all, _gather, _scalar, _prefix_sums]


def _run(mod: tvm.IRModule) -> Any:
    rng = np.random.default_rng(0)
    arrays = []
    for param in mod["main"].params:
        shape = tuple(int(extent) for extent in param.ty.shape)
        is_index = "int" in str(param.ty.dtype)
        value = rng.integers(0, 50, shape) if is_index else rng.standard_normal(shape)
        arrays.append(tvm.runtime.tensor(np.asarray(value).astype(str(param.ty.dtype))))
    tvm.compile(mod, target="llvm")["main"](*arrays)
    return arrays[-1].numpy()


@pytest.mark.parametrize("make", CASES)
def test_the_result_stays_the_same(make: Callable[[], tvm.IRModule]) -> None:
    np.testing.assert_allclose(_run(schedule(make())), _run(make()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "is_parallel"), [(_convolution, True), (_gather, True), (_prefix_sums, False)]
)
def test_only_independent_iterations_run_in_parallel(
    make: Callable[[], tvm.IRModule], is_parallel: bool
) -> None:
    assert ("T.parallel" in schedule(make()).script()) is is_parallel


def test_an_unschedulable_function_is_unchanged() -> None:
    @T.prim_func
    def main(x: T.Buffer((8,), "float32")):
        x[0] = T.float32(1)

    mod = tvm.IRModule({"main": main})
    assert schedule(mod) is mod


def _product(rows: int) -> tvm.IRModule:
    """A product with codes that are unpacked in the innermost loop, as weights of few bits are."""
    x, codes = te.placeholder((rows, 64), name="x"), te.placeholder((64, 96), "uint8", name="codes")
    k = te.reduce_axis((0, 64), "k")
    return _module(
        x, codes, te.compute((rows, 96), lambda i, j: te.sum(x[i, k] * codes[k, j].astype("float32"), k))
    )


def test_rows_of_a_product_share_the_unpacked_weights() -> None:
    module = schedule(_product(32))
    np.testing.assert_allclose(_run(module), _run(_product(32)), rtol=1e-4, atol=1e-5)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4"})
    assembly = tvm.compile(module, target=target).mod.inspect_source("asm")
    unpacked, multiplied = assembly.count("vcvtdq2ps"), assembly.count("vfmadd")
    assert multiplied >= 8 * unpacked > 0


def test_a_product_without_rows_and_a_convolution_are_not_tiled() -> None:
    assert "T.vectorized" not in schedule(_product(67)).script()
    assert "T.vectorized" not in schedule(_convolution()).script()
