"""The schedule of subgraphs that have no better one: correct for every PrimFunc, parallel where legal."""

from __future__ import annotations

import math

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IterVar

# Below this many iterations, waking the other threads costs more than they save.
MIN_PARALLEL_ITERATIONS = 4096


def schedule(mod: tvm.IRModule) -> tvm.IRModule:
    """The workload `main` with every nest of loops scheduled by itself; a nest that can't be stays as it is.

    for i, j, c, k: C[i, j, c] += ...  ->  parallel for i*j: { for c: init; for k: for c: C[i, j, c] += ... }
    """
    try:
        current = Schedule(mod, debug_mask="none")
        names = [
            current.get(block).name_hint for block in current.get_child_blocks(current.get_sblock("root"))
        ]
    except Exception:  # TVM raises whatever class its C++ side names
        return mod
    for name in names:
        trial = current.copy()
        try:
            _schedule_nest(trial, trial.get_sblock(name))
        except Exception:
            continue
        current = trial
    return current.mod


def _schedule_nest(sch: Schedule, block: SBlockRV) -> None:
    loops = sch.get_loops(block)
    spatial = _leading_spatial(sch, block, loops)
    if not spatial or math.prod(_extent(sch, loop) for loop in loops) < MIN_PARALLEL_ITERATIONS:
        return
    reduction = loops[len(spatial) :]
    if len(spatial) > 1:
        *spatial, innermost = spatial
        if reduction:
            sch.reorder(*reduction, innermost)
    sch.parallel(sch.fuse(*spatial))
    if reduction:
        sch.decompose_reduction(block, reduction[0])


def _leading_spatial(sch: Schedule, block: SBlockRV, loops: list[LoopRV]) -> list[LoopRV]:
    """The outer loops that spatial axes are bound to, one each: TE's and relax's form of a block."""
    axes = sch.get(block).iter_vars
    if len(axes) != len(loops):
        return []
    kinds = [axis.iter_type == IterVar.DataPar for axis in axes]
    return loops[: kinds.index(False)] if False in kinds else list(loops)


def _extent(sch: Schedule, loop: LoopRV) -> int:
    return int(sch.get(loop).extent)
