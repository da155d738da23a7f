"""Unrolling stops where accumulators would leave the registers."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import For

from compiler.codegen.compilation import apply_passes
from compiler.codegen.unrolling import (
    COMPLETELY_UNROLLED,
    MAX_INSTRUCTIONS,
    MAX_STEPS,
    keep_rolled,
    limit_unrolling,
)
from compiler.tir_nodes import find_all
from tests.register_tiles import compile_tile, flattened, register_tile, unrolled
from tests.workloads import module

ZEN = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver3"})
ZEN_AVX512 = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"})
SSE = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "nehalem"})
ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"})
LANES, OUTER = 8, 4


@pytest.mark.parametrize("rows", [9, 12, 14])
def test_loops_with_many_accumulators_add_in_place(rows: int) -> None:
    assembly = compile_tile(register_tile(rows, LANES, 64), ZEN).mod.inspect_source("asm")
    assert assembly.count("vfmadd231ps") == assembly.count("vfmadd") == rows


@pytest.mark.parametrize(
    ("target", "rows", "depth", "is_marked"),
    [
        pytest.param(ZEN, 14, 64, True, id="all registers"),
        pytest.param(ZEN, 15, 64, False, id="more than all registers"),
        pytest.param(ZEN, 9, 64, True, id="more than half of the registers"),
        pytest.param(ZEN, 8, 64, False, id="half of the registers"),
        pytest.param(ZEN, 9, COMPLETELY_UNROLLED // 9, False, id="a short loop"),
        pytest.param(ZEN_AVX512, 17, 64, True, id="more than half of AVX-512's registers"),
        pytest.param(ZEN_AVX512, 16, 64, False, id="half of AVX-512's registers"),
        pytest.param(SSE, 5, 64, True, id="more than half of shorter registers"),
        pytest.param(SSE, 4, 64, False, id="half of shorter registers"),
        pytest.param(ARM, 20, 64, False, id="arm"),
    ],
)
def test_marked_loops(target: tvm.target.Target, rows: int, depth: int, is_marked: bool) -> None:
    lanes = 16 if target == ZEN_AVX512 else LANES
    tile = unrolled(flattened(register_tile(rows, lanes, depth)))
    lowered = tvm.IRModule({"main": tile["main"].with_attr("target", target)})
    assert ("tunefarm_keep_rolled" in str(keep_rolled(lowered))) == is_marked


def test_loops_that_add_integers_are_not_marked() -> None:
    tile = unrolled(flattened(register_tile(14, LANES, 64, "int32")))
    lowered = tvm.IRModule({"main": tile["main"].with_attr("target", ZEN)})
    assert "tunefarm_keep_rolled" not in str(keep_rolled(lowered))


def _scheduled(rows: int, inner_rows: int, inner_steps: int, limit: int) -> tvm.IRModule:
    """Return a product as the search schedules it: loops over rows between two loops over the reduction."""
    data = te.placeholder((OUTER * rows * inner_rows, OUTER * inner_steps), name="data")
    weight = te.placeholder((OUTER * inner_steps, LANES), name="weight")
    k = te.reduce_axis((0, OUTER * inner_steps), "k")
    product = te.compute(
        (OUTER * rows * inner_rows, LANES),
        lambda i, j: te.sum(data[i, k] * weight[k, j], axis=k),
        name="product",
    )
    schedule = Schedule(module([data, weight, product]))
    block = schedule.get_sblock("product")
    i, j, reduction = schedule.get_loops(block)
    i0, i1, i2 = schedule.split(i, [OUTER, rows, inner_rows])
    k0, k1 = schedule.split(reduction, [OUTER, inner_steps])
    schedule.reorder(i0, k0, i1, k1, i2, j)
    schedule.unroll(i2)
    schedule.vectorize(j)
    schedule.annotate(i0, MAX_STEPS, limit)
    schedule.annotate(i0, "pragma_unroll_explicit", 1)
    schedule.decompose_reduction(block, k0)
    return schedule.mod


@pytest.mark.parametrize(
    ("rows", "inner_rows", "inner_steps", "limit", "expected"),
    [
        pytest.param(2, 7, 4, 512, {OUTER: 56}, id="all accumulators fit"),
        pytest.param(4, 7, 4, 512, {4: 28}, id="only the tile's accumulators fit"),
        pytest.param(4, 7, 4, 16, {}, id="the program unrolls less"),
        pytest.param(5, 4, MAX_INSTRUCTIONS // 2, 512, {MAX_INSTRUCTIONS // 2: 4}, id="a long reduction"),
        pytest.param(4, 7, 1, 512, {}, id="no reduction inside"),
    ],
)
def test_limits(rows: int, inner_rows: int, inner_steps: int, limit: int, expected: dict[int, int]) -> None:
    scheduled = _scheduled(rows, inner_rows, inner_steps, limit)
    loops = find_all(apply_passes(scheduled, ZEN)["main"].body, For)
    limits = [
        (int(loop.extent), int(loop.annotations[MAX_STEPS]))
        for loop in loops
        if MAX_STEPS in loop.annotations
    ]
    assert limits == [*expected.items(), (OUTER, limit)]
    assert limit_unrolling(scheduled, ARM).same_as(scheduled)
