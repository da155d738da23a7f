"""Loops prefetch the rows of large operands, and keep their sums in registers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from compiler.codegen import prefetch
from compiler.codegen.compilation import pass_context
from compiler.codegen.pipeline import PIPELINE
from compiler.codegen.prefetch import AHEAD_BYTES, LINE_BYTES, MIN_OPERAND_BYTES
from tests.workloads import module

NATIVE = tvm.target.Target("llvm")
ROWS, VECTOR = 4, 32
CALL = "call void @llvm.prefetch"


def _product(depth: int, dtype: str = "float32") -> tvm.IRModule:
    """ROWS sums of vectors, over rows of the second operand, which are vectors too."""
    data = te.placeholder((ROWS, depth), dtype, name="data")
    weight = te.placeholder((depth, VECTOR), dtype, name="weight")
    k = te.reduce_axis((0, depth), "k")
    product = te.compute(
        (ROWS, VECTOR), lambda i, j: te.sum(data[i, k] * weight[k, j], axis=k), name="product"
    )
    schedule = Schedule(module([data, weight, product]))
    block = schedule.get_sblock("product")
    i, j, depth_loop = schedule.get_loops(block)
    schedule.reorder(depth_loop, i, j)
    schedule.unroll(i)
    schedule.vectorize(j)
    schedule.decompose_reduction(block, depth_loop)
    return schedule.mod


def _compile(scheduled: tvm.IRModule) -> tvm.runtime.Executable:
    with pass_context(NATIVE):
        return tvm.compile(scheduled, target=NATIVE, tir_pipeline=PIPELINE)


def _depth(num_bytes: int, item: int = 4) -> int:
    return num_bytes // (VECTOR * item)


@pytest.mark.parametrize(
    ("num_bytes", "dtype", "lines"),
    [
        pytest.param(MIN_OPERAND_BYTES, "float32", VECTOR * 4 // LINE_BYTES, id="as large as a cache"),
        pytest.param(MIN_OPERAND_BYTES - VECTOR * 4, "float32", 0, id="smaller"),
        pytest.param(MIN_OPERAND_BYTES, "float64", VECTOR * 8 // LINE_BYTES, id="of another type"),
    ],
)
def test_every_line_of_a_row_is_prefetched_once(num_bytes: int, dtype: str, lines: int) -> None:
    depth = _depth(num_bytes, np.dtype(dtype).itemsize)
    built = _compile(_product(depth, dtype))
    assert built.mod.inspect_source("ll").count(CALL) == lines
    rng = np.random.default_rng(0)
    data, weight = rng.uniform(size=(ROWS, depth)), rng.uniform(size=(depth, VECTOR))
    result = tvm.runtime.tensor(np.zeros((ROWS, VECTOR), dtype))
    built["main"](tvm.runtime.tensor(data.astype(dtype)), tvm.runtime.tensor(weight.astype(dtype)), result)
    np.testing.assert_allclose(result.numpy(), data @ weight, rtol=1e-5)


def test_sums_stay_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = _product(_depth(MIN_OPERAND_BYTES))
    prefetched = _compile(scheduled).mod.inspect_source("ll")
    monkeypatch.setattr(prefetch, "MIN_OPERAND_BYTES", 2 * MIN_OPERAND_BYTES)
    plain = _compile(scheduled).mod.inspect_source("ll")
    assert (CALL in prefetched, CALL in plain) == (True, False)
    assert prefetched.count("store <") == plain.count("store <")


def test_rows_are_prefetched_in_the_loop_that_moves_along_them() -> None:
    flat = tvm.transform.Sequential(
        [
            tvm.s_tir.transform.LowerInitBlock(),
            tvm.s_tir.transform.ConvertBlocksToOpaque(),
            tvm.s_tir.transform.LowerOpaqueBlock(),
            tvm.tirx.transform.FlattenBuffer(),
            tvm.tirx.transform.VectorizeLoop(),
        ]
    )(_product(_depth(MIN_OPERAND_BYTES)))
    text = prefetch.prefetch_operands(flat)["main"].script()
    assert (
        f"""
        for i in T.unroll({ROWS}):
            product_1[i * 32:i * 32 + 32] = product_1[T.Ramp(i * 32, 1, 32)] + T.Broadcast(data_1[i * 256 + k], 32) * weight_1[T.Ramp(k * 32, 1, 32)]
        T.call_extern("int32", "tunefarm_prefetch", T.address_of(weight_1[k * 32 + {AHEAD_BYTES // 4}]))
        T.call_extern("int32", "tunefarm_prefetch", T.address_of(weight_1[k * 32 + {(AHEAD_BYTES + LINE_BYTES) // 4}]))
"""  # noqa: E501
        in text
    )
