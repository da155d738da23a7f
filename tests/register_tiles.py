"""A scheduled matrix product and a stencil with sums in registers, and their compilation as candidates."""

from __future__ import annotations

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from compiler.codegen.compilation import pass_context
from compiler.codegen.pipeline import PIPELINE
from tests.workloads import module


def register_tile(
    rows: int, columns: int, depth: int, dtype: str = "float32", inner: int = 0
) -> tvm.IRModule:
    """Return a product with unrolled rows, and columns that are one vector. With `inner`, as many steps of
    the reduction are a loop of their own. Products of float16 are added in float32.
    """
    total = "float32" if dtype == "float16" else dtype
    data = te.placeholder((rows, depth), dtype, name="data")
    weight = te.placeholder((depth, columns), dtype, name="weight")
    k = te.reduce_axis((0, depth), "k")
    product = te.compute(
        (rows, columns),
        lambda i, j: te.sum(data[i, k].astype(total) * weight[k, j].astype(total), axis=k),
        name="product",
    )
    schedule = Schedule(module([data, weight, product]))
    block = schedule.get_sblock("product")
    i, j, reduction = schedule.get_loops(block)
    loops = schedule.split(reduction, [None, inner]) if inner else [reduction]
    schedule.reorder(*loops, i, j)
    schedule.unroll(i)
    schedule.vectorize(j)
    schedule.decompose_reduction(block, loops[0])
    return schedule.mod


def padded_stencil(
    rows: int, columns: int, tile: int, taps: int = 3, *, unroll_taps: bool = True
) -> tvm.IRModule:
    """Return a depthwise convolution of rows with zeros around them, in tiles of unrolled rows. The zeros are
    not stored: loads beyond the border have a condition. `unroll_taps` says whether the taps are unrolled.
    """
    before = taps // 2
    data = te.placeholder((rows, columns), "float32", name="data")
    weight = te.placeholder((taps, columns), "float32", name="weight")
    padded = te.compute(
        (rows + taps - 1, columns),
        lambda i, j: tirx.if_then_else(
            tirx.all(before <= i, i < rows + before), data[i - before, j], tirx.const(0.0, "float32")
        ),
        name="padded",
    )
    k = te.reduce_axis((0, taps), "k")
    stencil = te.compute(
        (rows, columns), lambda i, j: te.sum(padded[i + k, j] * weight[k, j], axis=k), name="stencil"
    )
    schedule = Schedule(module([data, weight, stencil]))
    schedule.compute_inline(schedule.get_sblock("padded"))
    block = schedule.get_sblock("stencil")
    i, j, reduction = schedule.get_loops(block)
    outer, inner = schedule.split(i, [None, tile])
    schedule.reorder(outer, reduction, inner, j)
    schedule.unroll(inner)
    if unroll_taps:
        schedule.unroll(reduction)
    schedule.vectorize(j)
    schedule.decompose_reduction(block, reduction)
    return schedule.mod


def compile_tile(scheduled: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    with pass_context(target):
        return tvm.compile(scheduled, target=target, tir_pipeline=PIPELINE)


def flattened(scheduled: tvm.IRModule) -> tvm.IRModule:
    """Return a scheduled module with vectors, and buffers of one dimension."""
    return tvm.transform.Sequential(
        [
            tvm.s_tir.transform.LowerInitBlock(),
            tvm.s_tir.transform.ConvertBlocksToOpaque(),
            tvm.s_tir.transform.LowerOpaqueBlock(),
            tvm.tirx.transform.FlattenBuffer(),
            tvm.tirx.transform.VectorizeLoop(),
        ]
    )(scheduled)


def unrolled(flat: tvm.IRModule) -> tvm.IRModule:
    return tvm.tirx.transform.StmtSimplify()(tvm.tirx.transform.UnrollLoop()(flat))
