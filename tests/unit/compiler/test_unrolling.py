"""Unrolling stops where accumulators would leave the registers."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import For, SeqStmt

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
    assert _limits(apply_passes(scheduled, ZEN)) == [*expected.items(), (OUTER, limit)]
    tvm.ir.assert_structural_equal(limit_unrolling(scheduled, ARM), scheduled)


def _limits(module: tvm.IRModule) -> list[tuple[int, int]]:
    """Return the extent and the limit of each loop that has one, inner loops first."""
    loops = [loop for loop in find_all(module["main"].body, For) if MAX_STEPS in loop.annotations]
    return [(int(loop.extent), int(loop.annotations[MAX_STEPS])) for loop in loops]


def _finished(rows: int, columns: int) -> tvm.IRModule:
    """Return sums whose results are finished in loops of their own, as the search fuses them."""
    data = te.placeholder((OUTER, rows, columns, LANES, OUTER), name="data")
    k = te.reduce_axis((0, OUTER), "k")
    shape = OUTER, rows, columns, LANES
    total = te.compute(shape, lambda *at: te.sum(data[(*at, k)], axis=k), name="total")
    finished = te.compute(shape, lambda *at: te.max(total(*at) + 1.0, 0.0), name="finished")
    schedule = Schedule(module([data, finished]))
    outer, *_, vector = schedule.get_loops(schedule.get_sblock("finished"))
    schedule.annotate(outer, MAX_STEPS, 512)
    schedule.vectorize(vector)
    return schedule.mod


@pytest.mark.parametrize(("target", "vectors"), [(ZEN, 1), (ARM, 2)], ids=["x86", "arm"])
def test_long_copies_are_not_unrolled(target: tvm.target.Target, vectors: int) -> None:
    # A load, a sum, a maximum and a store.
    most = MAX_INSTRUCTIONS // (4 * vectors)
    for rows, columns, expected in [(1, most, []), (2, most, [(2, most)]), (2, most + 1, [(most + 1, 1)])]:
        assert _limits(limit_unrolling(_finished(rows, columns), target)) == [*expected, (OUTER, 512)]


def _copy(rows: int, lanes: int) -> tvm.IRModule:
    source = te.placeholder((OUTER, rows, lanes), name="source")
    copied = te.compute((OUTER, rows, lanes), lambda *at: source(*at) * 2.0, name="copied")
    schedule = Schedule(module([source, copied]))
    if lanes > 1:
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("copied"))[-1])
    return schedule.mod


@pytest.mark.parametrize("target", [ZEN, ARM], ids=["x86", "arm"])
def test_long_copies_are_marked_where_they_become_long(target: tvm.target.Target) -> None:
    vectors = 1 if target == ZEN else 2
    most = MAX_INSTRUCTIONS // (3 * vectors)  # a load, a product and a store
    for rows, marked in [(most // OUTER, []), (most // OUTER + 1, [OUTER]), (most + 1, [most + 1])]:
        lowered = flattened(_copy(rows, LANES))
        lowered = tvm.IRModule({"main": lowered["main"].with_attr("target", target)})
        loops = find_all(keep_rolled(lowered)["main"].body, For)
        assert [int(loop.extent) for loop in loops if _is_marked(loop)] == marked


def _is_marked(loop: For) -> bool:
    return isinstance(loop.body, SeqStmt) and "tunefarm_keep_rolled" in str(loop.body.seq[-1])


def test_scalar_copies_are_left_to_llvms_vectorizer() -> None:
    lowered = flattened(_copy(MAX_INSTRUCTIONS, 1))
    lowered = tvm.IRModule({"main": lowered["main"].with_attr("target", ZEN)})
    assert "tunefarm_keep_rolled" not in str(keep_rolled(lowered))


def test_packing_is_compiled_as_plain_loops() -> None:
    """It runs once, and took a third of a build."""
    packing = flattened(_copy(MAX_INSTRUCTIONS, 1))["main"].with_attr("target", ZEN)
    for name, marked in [("__tvm_ffi_pack", [MAX_INSTRUCTIONS]), ("__tvm_ffi_main", [])]:
        function = packing.with_attr("global_symbol", name)
        loops = find_all(keep_rolled(tvm.IRModule({"main": function}))["main"].body, For)
        assert [int(loop.extent) for loop in loops if _is_marked(loop)] == marked
