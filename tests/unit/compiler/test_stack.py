"""Small buffers are on the stack, large ones in TVM's pool."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from compiler.codegen.pipeline import PIPELINE
from compiler.codegen.stack_buffers import MAX_STACK_BYTES
from tests.workloads import module

NATIVE = tvm.target.Target("llvm")
ROWS = 4


def _rows_through_a_cache(columns: int) -> tvm.IRModule:
    """Twice the input, a row at a time in a buffer of its own."""
    data = te.placeholder((ROWS, columns), name="data")
    schedule = Schedule(module([data, te.compute(data.shape, lambda i, j: data[i, j] * 2.0, name="twice")]))
    block = schedule.get_sblock("twice")
    schedule.cache_write(block, 0, "global")
    copy = schedule.get_sblock("twice_global")
    schedule.compute_at(block, schedule.get_loops(copy)[0])
    return schedule.mod


@pytest.mark.parametrize(
    ("columns", "pipeline", "is_pooled"),
    [
        (MAX_STACK_BYTES // 4, PIPELINE, False),
        (MAX_STACK_BYTES // 4 + 1, PIPELINE, True),
        (MAX_STACK_BYTES // 4, "default", True),
    ],
)
def test_buffers_are_on_the_stack_up_to_a_size(columns: int, pipeline: str, is_pooled: bool) -> None:
    built = tvm.compile(_rows_through_a_cache(columns), target=NATIVE, tir_pipeline=pipeline)
    assert ("TVMBackendAllocWorkspace" in built.mod.inspect_source("asm")) is is_pooled
    data = np.arange(ROWS * columns, dtype="float32").reshape(ROWS, columns)
    result = tvm.runtime.tensor(np.zeros_like(data))
    built["main"](tvm.runtime.tensor(data), result)
    assert np.array_equal(result.numpy(), data * 2)
