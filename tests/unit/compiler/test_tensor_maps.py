"""Marked copies of tiles become fetches by tensor maps, if they copy what the mark says."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import s_tir, te
from tvm.ir import Call

from compiler.codegen.tensor_maps import NoTile, define_fetches, fetch_by_maps
from compiler.tir_nodes import find_all, op_name
from core.trace import TENSOR_MAP

ROWS, COLUMNS = 64, 128
KERNEL = """\
extern "C" __global__ void {name}(float* a);
extern "C" __global__ void {name}(float* a) {{
  extern __shared__ __align__(64) uchar shared[];
  {start}
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_2();
}}
"""


def copied(matrix: list[int], computed: bool = False) -> tvm.IRModule:
    """A function that copies tiles of 32 rows to shared memory, marked with the shape of a matrix."""
    shape = (1, ROWS, COLUMNS)
    source = te.placeholder(shape, "float16", name="A")
    value = te.compute(shape, lambda *at: source[at] + source[at], name="B")
    result = te.compute(shape, lambda *at: (value if computed else source)[at], name="C")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([source, result])}))
    block = schedule.get_sblock("C")
    fetch = schedule.cache_read(block, 0, "shared.dyn")
    schedule.transform_layout(fetch, ("write", 0), _in_columns)
    schedule.transform_block_layout(fetch, _in_columns)
    outer, _ = schedule.split(schedule.get_loops(block)[1], [None, 32])
    schedule.compute_at(fetch, outer, preserve_unit_loops=True)
    if computed:
        schedule.compute_inline(schedule.get_sblock("B"))
    schedule.annotate(schedule.blockize(schedule.get_loops(fetch)[-3]), TENSOR_MAP, matrix)
    return schedule.mod


def _in_columns(batch: Any, row: Any, element: Any) -> tuple[Any, ...]:
    return batch, element // 64, row, element % 64


def test_a_copy_becomes_a_fetch() -> None:
    calls = find_all(fetch_by_maps(copied([1, ROWS, COLUMNS]))["main"].body, Call)
    (start,) = (call for call in calls if op_name(call) == "call_extern")
    assert [int(size) for size in start.args[3:9]] == [1, ROWS, COLUMNS, 32, 2, 64]


@pytest.mark.parametrize("matrix", [[1, COLUMNS, ROWS], [1, ROWS, 64], [2, ROWS // 2, COLUMNS]])
def test_another_matrix_is_refused(matrix: list[int]) -> None:
    with pytest.raises(NoTile, match=r"matrix of|computes what"):
        fetch_by_maps(copied(matrix))


def test_a_copy_that_computes_is_refused() -> None:
    with pytest.raises(NoTile, match="computes what it copies"):
        fetch_by_maps(copied([1, ROWS, COLUMNS], computed=True))


def test_only_kernels_with_fetches_change() -> None:
    other = KERNEL.format(name="other", start="")
    functions, source = define_fetches(KERNEL.format(name="mine", start="tile_fetches.start(a);") + other)
    assert "class TileFetches" in functions
    assert source.endswith(other)
    assert "tile_fetches.commit();\n  tile_fetches.wait<2>();" in source
    assert "__align__(1024) uchar shared[];" in source
    assert define_fetches(other) == ("", other)
