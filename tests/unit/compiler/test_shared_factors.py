"""A sum that several statements multiply is computed once."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.tirx import Add, Bind, BufferStore
from tvm.tirx.compilation_pipeline import get_tir_pipeline

from compiler.codegen.broadcasts import store_bfloat16
from compiler.codegen.compilation import pass_context
from compiler.codegen.shared_factors import lower_shared, share_factors
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


# Written as TVM inlines it: an element is a sum of a term for each place. The last column's are zero.
ELEMENTS = np.arange(1, 31, dtype=np.float32).reshape(5, 6) * (np.arange(6) < 5)


def _element(row: str, column: str) -> str:
    terms = [
        f"T.Cast('float32', {row} * 6 + {column} == {at}) * T.float32({value})"
        for at, value in enumerate(ELEMENTS.flat)
        if value
    ]
    return f"({' + '.join(terms)})"


def _transform(columns: str, lanes: str) -> tvm.IRModule:
    """Return c[x, column, :] += M[row, column] * (a[x, row, :] + M[2, row] * a[x, row + 1, :]) for all rows.
    `columns` and `lanes` are kinds of loops.
    """
    source = f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer((4, 6, 8), "float32"), c: T.Buffer((4, 6, 8), "float32")):
    for x in range(4):
        for column in T.{columns}(6):
            for row in T.unroll(5):
                for lane in T.{lanes}(8):
                    c[x, column, lane] = c[x, column, lane] + {_element("row", "column")} * (
                        a[x, row, lane] + a[x, row + 1, lane] * {_element("2", "row")}
                    )
"""
    return tvm.IRModule({"main": tvm.script.from_source(source).with_attr("global_symbol", "main")})


@pytest.mark.parametrize(
    ("columns", "lanes"),
    [
        ("unroll", "vectorized"),
        ("unroll", "serial"),
        ("serial", "vectorized"),
        ("serial", "serial"),
        ("vectorized", "serial"),
    ],
)
def test_transforms_share_factors_however_their_loops_run(columns: str, lanes: str) -> None:
    a = np.random.default_rng(0).integers(-4, 5, (4, 6, 8)).astype(np.float32)
    c = tvm.runtime.tensor(np.ones_like(a))
    library = compile_tile(_transform(columns, lanes), NATIVE)
    library["main"](tvm.runtime.tensor(a), c)
    factors = a[:, :-1] + ELEMENTS[2, :5, np.newaxis] * a[:, 1:]
    expected = 1 + np.einsum("xrl,rc->xcl", factors, ELEMENTS)
    np.testing.assert_array_equal(c.numpy(), expected)


def test_factors_are_shared_before_tvm_simplifies_them() -> None:
    lower, _, _ = get_tir_pipeline("s_tir")
    with NATIVE, pass_context(NATIVE):
        bound = tvm.tirx.transform.BindTarget(NATIVE.with_host(NATIVE))(_transform("unroll", "vectorized"))
        lowered = store_bfloat16(bound, lambda module: lower_shared(module, lower))["main"]
    assert len([each for each in find_all(lowered.body, Bind) if each.var.name == "factor"]) == 5
    assert 'Cast("float32"' not in str(lowered.script())
    sums = [store for store in find_all(lowered.body, BufferStore) if isinstance(store.value, Add)]
    assert len(sums) == 25  # the zeros' products are left out
