"""Vectors that lack registers are aligned on the stack."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tests.register_tiles import compile_tile
from tests.workloads import module

HASWELL = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
# A vector that is loaded from the stack, and whether its address is known to be aligned.
_LOAD = re.compile(r"vmov(a|u)p[sd]\s+-?\d*\(%rsp\), %ymm")


@pytest.mark.parametrize("is_parallel", [True, False])
def test_sums_without_registers_are_aligned(is_parallel: bool) -> None:
    """Eight rows of four vectors, where haswell has 16 registers."""
    data, weight = te.placeholder((2, 8, 64), name="data"), te.placeholder((64, 32), name="weight")
    k = te.reduce_axis((0, 64), "k")
    product = te.compute(
        (2, 8, 32), lambda n, i, j: te.sum(data[n, i, k] * weight[k, j], axis=k), name="product"
    )
    schedule = Schedule(module([data, weight, product]))
    block = schedule.get_sblock("product")
    n, i, j, reduction = schedule.get_loops(block)
    schedule.reorder(n, reduction, i, j)
    schedule.unroll(i)
    schedule.vectorize(j)
    if is_parallel:
        schedule.parallel(n)
    sums = schedule.cache_write(block, 0, "global")
    schedule.reverse_compute_at(sums, n)
    schedule.decompose_reduction(block, reduction)
    kinds = set(_LOAD.findall(compile_tile(schedule.mod, HASWELL).mod.inspect_source("asm")))
    assert kinds == {"a"}
