"""Schedule subgraphs that have no better schedule: correct for every PrimFunc, parallel where legal."""

from __future__ import annotations

import math

import tvm
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, Schedule, dlight
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IterVar, PrimFunc, Var

from compiler.lowering.trace import UNSCHEDULED, trace_of
from compiler.tir_nodes import find_all
from compiler.workload import normalise

# Below this many iterations, waking the other threads costs more than they save.
MIN_PARALLEL_ITERATIONS = 4096
# With this many, plain loops take about a millisecond.
SLOW_ITERATIONS = 1 << 20
# Possible extents of a tile of results in registers, the best first.
TILE_ROWS, TILE_COLUMNS = (8, 4), (32, 16)


def schedule(mod: tvm.IRModule, min_iterations: int = MIN_PARALLEL_ITERATIONS) -> tvm.IRModule:
    """Schedule every loop nest of the workload `main` separately. Nests with fewer iterations stay unchanged,
    and so do nests and workloads that TVM can't schedule.

        for i, j, c, k:
            C[i, j, c] += A[i, j, k] * B[k, c]
    ->
        for ij0_c0 in T.parallel(I * (J // 8) * (N // 32)):
            for j1 in T.unroll(8): for c1 in T.vectorized(32): C[i, j, c] = 0
            for k:
                for j1 in T.unroll(8): for c1 in T.vectorized(32):
                    C[i, j, c] += A[i, j, k] * B[k, c]
    """
    scheduled = _schedule_nests(mod, min_iterations)
    return mod if scheduled is None else scheduled.mod


def schedule_slow(fused: tvm.IRModule) -> tvm.IRModule:
    """Schedule the slow loop nests of a fused model; all others stay as TVM compiles them by default."""
    functions = dict(fused.functions_items())
    for name, function in functions.items():
        if isinstance(function, PrimFunc) and not function.attrs.get("tirx.is_scheduled", False):
            module = schedule(normalise(function), SLOW_ITERATIONS)
            functions[name] = mark_scheduled(module["main"], function)
    return tvm.IRModule(functions, attrs=fused.attrs, global_infos=fused.global_infos)


def mark_scheduled(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """Mark a model's scheduled function, so that TVM doesn't change it."""
    marked = scheduled.with_attr("tirx.is_scheduled", True)
    # A private function stays private: TVM may then rename it when it links.
    return marked if "global_symbol" in original.attrs else marked.without_attr("global_symbol")


def trace(mod: tvm.IRModule) -> str:
    """Return the trace of the fallback schedule of a workload, for a device to measure."""
    scheduled = _schedule_nests(mod, MIN_PARALLEL_ITERATIONS)
    return UNSCHEDULED if scheduled is None else trace_of(scheduled)


def _schedule_nests(mod: tvm.IRModule, min_iterations: int) -> Schedule | None:
    """Schedule all loop nests; None if TVM can't schedule the workload."""
    try:
        current = Schedule(mod, debug_mask="none")
        names = [
            current.get(block).name_hint for block in current.get_child_blocks(current.get_sblock("root"))
        ]
    except Exception:  # TVM's C++ code may raise any exception class
        return None
    for name in names:
        trial = current.copy()
        try:
            _schedule_nest(trial, trial.get_sblock(name), min_iterations)
        except Exception:
            continue
        current = trial
    return current


def schedule_for_gpu(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Schedule every function without a schedule by TVM's own rules for GPUs: each nest becomes a kernel."""
    rules = dlight.gpu
    with target:
        return dlight.ApplyDefaultSchedule(
            rules.Matmul(), rules.GEMV(), rules.Reduction(), rules.GeneralReduction(), rules.Fallback()
        )(module)


def _schedule_nest(sch: Schedule, block: SBlockRV, min_iterations: int) -> None:
    loops = sch.get_loops(block)
    axes = sch.get(block).iter_vars
    if len(axes) != len(loops):
        return
    # In code from TE and relax, each loop belongs to one axis, in the same order.
    is_spatial = [axis.iter_type == IterVar.DataPar for axis in axes]
    spatial = loops[: is_spatial.index(False)] if False in is_spatial else list(loops)
    iterations = math.prod(int(sch.get(loop).extent) for loop in loops)
    if not spatial or iterations < min_iterations:
        return
    reduction = loops[len(spatial) :]
    if len(spatial) > 1:
        tile = _tile_of(sch, sch.get(block), spatial) if reduction else None
        if tile is not None:
            spatial = _tile(sch, spatial, reduction, tile)
        else:
            *spatial, innermost = spatial
            if reduction:
                sch.reorder(*reduction, innermost)
    sch.parallel(sch.fuse(*spatial))
    if reduction:
        sch.decompose_reduction(block, reduction[0])


def _tile_of(sch: Schedule, block: SBlock, spatial: list[LoopRV]) -> tuple[int, int] | None:
    """Return the extents of a tile of a product's last two spatial loops, whose rows share the loaded and
    unpacked columns; None if no tile divides the loops, or a sum reads neighbours, as a convolution does.
    """
    axes = [axis.var for axis in block.iter_vars[: len(spatial)]][-2:]
    for load in find_all(block.body, TensorLoad):
        for index in load.indices:
            used = [one for one in find_all(index, Var) if any(one.same_as(axis) for axis in axes)]
            if used and not any(index.same_as(axis) for axis in axes):
                return None
    height, width = (
        next((size for size in sizes if int(sch.get(loop).extent) % size == 0), 1)
        for loop, sizes in zip(spatial[-2:], (TILE_ROWS, TILE_COLUMNS), strict=True)
    )
    return (height, width) if min(height, width) > 1 else None


def _tile(
    sch: Schedule, spatial: list[LoopRV], reduction: list[LoopRV], extents: tuple[int, int]
) -> list[LoopRV]:
    """Move the reduction outside a tile of the last two spatial loops; return the loops outside it."""
    *outer, rows, columns = spatial
    rows, row = sch.split(rows, [None, extents[0]])
    columns, vector = sch.split(columns, [None, extents[1]])
    sch.reorder(*outer, rows, columns, *reduction, row, vector)
    sch.unroll(row)
    sch.vectorize(vector)
    return [*outer, rows, columns]
