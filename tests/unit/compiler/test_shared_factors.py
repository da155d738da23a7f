"""A sum that several statements multiply is computed once."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.tirx import Bind

from compiler.codegen.shared_factors import share_factors
from compiler.target import detect_device, parse_target
from compiler.tir_nodes import find_all
from tests.register_tiles import compile_tile

NATIVE = parse_target(detect_device().target)
# An element beyond the border counts as zero, as in a padded convolution.
BORDER = "T.if_then_else(i >= 1, a[T.Ramp(i * 8 - 8, 1, 8)], T.Broadcast(T.float32(0), 8))"
FACTOR = f"({BORDER} + a[T.Ramp(i * 8, 1, 8)] * T.Broadcast(T.float32(-2), 8))"
OTHER = FACTOR.replace("-2", "-3")


def _sums(*factors: str, first: str = "") -> tvm.IRModule:
    """Return a loop that adds products of these factors to successive vectors of `c`."""
    sums = "".join(
        f"""
        c[T.Ramp(i * 32 + {at * 8}, 1, 8)] = c[T.Ramp(i * 32 + {at * 8}, 1, 8)] + (
            T.Broadcast(T.float32({at + 0.5}), 8) * {factor}
        )"""
        for at, factor in enumerate(factors)
    )
    source = f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32"), c: T.Buffer((256,), "float32")):
    for i in range(8):{first}{sums}
"""
    return tvm.IRModule({"main": tvm.script.from_source(source).with_attr("global_symbol", "main")})


def test_each_repeated_factor_is_bound_once() -> None:
    shared = share_factors(_sums(FACTOR, OTHER, FACTOR, OTHER))["main"]
    assert len(find_all(shared.body, Bind)) == 2
    assert str(shared.script()).count("if_then_else") == 2


@pytest.mark.parametrize(
    "factors",
    [
        pytest.param([FACTOR, OTHER], id="factors that differ"),
        pytest.param(["a[T.Ramp(i * 8, 1, 8)]"] * 2, id="a load, which is no sum"),
        pytest.param([FACTOR.replace("a[", "c[")] * 2, id="a factor of what is written"),
    ],
)
def test_other_factors_stay(factors: list[str]) -> None:
    module = _sums(*factors)
    tvm.ir.assert_structural_equal(share_factors(module), module)


def test_a_factor_is_bound_after_what_comes_before_it() -> None:
    first = "\n        b[T.Ramp(i * 8, 1, 8)] = a[T.Ramp(i * 8, 1, 8)]"
    shared = share_factors(_sums(FACTOR, FACTOR, first=first))["main"]
    (loop,) = find_all(shared.body, tvm.tirx.For)
    assert [type(statement).__name__ for statement in loop.body.seq] == [
        "BufferStore",
        "Bind",
        "BufferStore",
        "BufferStore",
    ]


def test_results_stay_equal() -> None:
    a = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    before = np.concatenate([np.zeros(8, np.float32), a])[:64]
    c = tvm.runtime.tensor(np.ones(256, np.float32))
    compile_tile(_sums(FACTOR, OTHER, FACTOR, OTHER), NATIVE)["main"](
        tvm.runtime.tensor(a), tvm.runtime.tensor(a), c
    )
    expected = [1 + (at + 0.5) * (before - (2 + at % 2) * a).reshape(8, 8) for at in range(4)]
    np.testing.assert_allclose(c.numpy().reshape(8, 4, 8), np.stack(expected, 1), rtol=1e-6, atol=1e-6)
