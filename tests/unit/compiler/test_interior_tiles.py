"""Tiles that touch no border of a padded operand are computed without its conditions."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.ir import Call
from tvm.tirx import IfThenElse

from compiler.codegen.interior_tiles import split_interior
from compiler.tir_nodes import find_all, op_name
from tests.register_tiles import compile_tile, flattened, padded_stencil, register_tile, unrolled

NATIVE = tvm.target.Target("llvm")
ROWS, COLUMNS = 16, 8


def _conditions(statement: object) -> int:
    return sum(op_name(call) == "if_then_else" for call in find_all(statement, Call))


@pytest.mark.parametrize(
    ("tile", "taps", "unroll_taps", "left"),
    [
        pytest.param(4, 3, True, 0, id="two of four tiles touch no border"),
        pytest.param(4, 3, False, 0, id="a loop over the taps"),
        pytest.param(4, 6, True, 0, id="an even number of taps"),
        pytest.param(8, 3, True, 1, id="each of two tiles touches a border"),
        pytest.param(16, 3, True, None, id="one tile"),
    ],
)
def test_a_tile_in_the_interior_has_no_conditions(
    tile: int, taps: int, unroll_taps: bool, left: int | None
) -> None:
    scheduled = padded_stencil(ROWS, COLUMNS, tile, taps, unroll_taps=unroll_taps)
    checks = find_all(split_interior(unrolled(flattened(scheduled)))["main"].body, IfThenElse)
    assert [_conditions(check.then_case) for check in checks] == ([] if left is None else [left])
    rng = np.random.default_rng(0)
    data = rng.uniform(size=(ROWS, COLUMNS)).astype(np.float32)
    weight = rng.uniform(size=(taps, COLUMNS)).astype(np.float32)
    result = tvm.runtime.tensor(np.zeros_like(data))
    compile_tile(scheduled, NATIVE)["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), result)
    before = taps // 2
    padded = np.pad(data, [(before, taps - 1 - before), (0, 0)])
    expected = sum(padded[k : k + ROWS] * weight[k] for k in range(taps))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("taps", "checks"), [(8, 1), (32, 0)])
def test_a_tile_with_many_conditional_sums_stays(taps: int, checks: int) -> None:
    module = unrolled(flattened(padded_stencil(64, COLUMNS, 16, taps, unroll_taps=True)))
    assert len(find_all(split_interior(module)["main"].body, IfThenElse)) == checks


def test_a_product_without_conditions_stays() -> None:
    module = unrolled(flattened(register_tile(4, COLUMNS, 16)))
    assert not find_all(split_interior(module)["main"].body, IfThenElse)
