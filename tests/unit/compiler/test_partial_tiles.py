"""Full tiles are computed without the conditions of the last, partial one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import IfThenElse

from compiler.codegen.partial_tiles import split_full_tiles
from compiler.tir_nodes import find_all
from tests.register_tiles import compile_tile, flattened, unrolled
from tests.workloads import module

NATIVE = tvm.target.Target("llvm")
COLUMNS, DEPTH = 8, 16


def _product(rows: int, tile: int, depth: int = DEPTH, steps: int = 1) -> tvm.IRModule:
    """Return a product in register tiles of `tile` rows, each with a loop along the reduction. An iteration
    has `steps` of it.
    """
    data = te.placeholder((rows, depth), "float32", name="data")
    weight = te.placeholder((depth, COLUMNS), "float32", name="weight")
    k = te.reduce_axis((0, depth), "k")
    product = te.compute(
        (rows, COLUMNS), lambda i, j: te.sum(data[i, k] * weight[k, j], axis=k), name="product"
    )
    schedule = Schedule(module([data, weight, product]))
    block = schedule.get_sblock("product")
    i, j, reduction = schedule.get_loops(block)
    outer, inner = schedule.split(i, [None, tile])
    along, step = schedule.split(reduction, [None, steps])
    schedule.reorder(outer, along, step, inner, j)
    schedule.unroll(step)
    schedule.unroll(inner)
    schedule.vectorize(j)
    schedule.decompose_reduction(block, along)
    return schedule.mod


@pytest.mark.parametrize(
    ("rows", "tile", "partial"),
    [
        pytest.param(14, 4, 4, id="half of the last tile"),
        pytest.param(13, 4, 6, id="a row of the last tile"),
        pytest.param(16, 4, None, id="no partial tile"),
        pytest.param(3, 4, None, id="one tile, which is smaller"),
    ],
)
def test_full_tiles_have_no_conditions(rows: int, tile: int, partial: int | None) -> None:
    """In the last tile, each missing row has two: where its sum starts, and where it grows."""
    scheduled = _product(rows, tile)
    body = split_full_tiles(unrolled(flattened(scheduled)))["main"].body
    checks = [check for check in find_all(body, IfThenElse) if check.else_case is not None]
    assert [len(find_all(check.then_case, IfThenElse)) for check in checks] == [0] * (partial is not None)
    assert [len(find_all(check.else_case, IfThenElse)) for check in checks] == [partial] * len(checks)
    rng = np.random.default_rng(0)
    data = rng.uniform(size=(rows, DEPTH)).astype(np.float32)
    weight = rng.uniform(size=(DEPTH, COLUMNS)).astype(np.float32)
    result = tvm.runtime.tensor(np.zeros((rows, COLUMNS), np.float32))
    compile_tile(scheduled, NATIVE)["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), result)
    np.testing.assert_allclose(result.numpy(), data @ weight, rtol=1e-5)


@pytest.mark.parametrize(("tile", "checks"), [(4, 1), (16, 0)])
def test_a_loop_with_many_conditional_sums_stays(tile: int, checks: int) -> None:
    scheduled = _product(2 * tile + 1, tile, depth=4 * tile, steps=tile)
    body = split_full_tiles(unrolled(flattened(scheduled)))["main"].body
    assert sum(check.else_case is not None for check in find_all(body, IfThenElse)) == checks
