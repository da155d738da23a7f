"""A scheduled matrix product whose sums stay in registers, and its compilation as a candidate."""

from __future__ import annotations

import tvm
from tvm import te
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


def compile_tile(scheduled: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    with pass_context(target):
        return tvm.compile(scheduled, target=target, tir_pipeline=PIPELINE)
