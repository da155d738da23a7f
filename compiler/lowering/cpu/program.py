"""Lower programs for CPUs to schedule primitives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.s_tir import Schedule

from compiler.lowering.cpu.nests import Nests
from compiler.lowering.cpu.tensor_tiles import TensorTiles
from compiler.lowering.primitives import Primitives
from core.device import Device
from search.programs.program import Program
from search.sketches.stage import Placement


def lower_cpu(schedule: Schedule, program: Program, device: Device, buffers: Mapping[str, Any]) -> None:
    """Apply a program to the schedule of its workload: inline, tile and place its stages, then annotate them.

        for i, j: A1[i, j] = exp(A[i, j])
        for i, j, k: C[i, j] += A1[i, k] * B[k, j]
        for i, j: D[i, j] = C[i, j] + E[j]
    ->
        for i0_j0 in T.parallel:
            for i1, j1:
                for k0, i2, j2, k1:
                    for i3 in T.unroll: for j3 in T.vectorized: C[i, j] += exp(A[i, k]) * B[k, j]
                for i, j: D[i, j] = C[i, j] + E[j]

    `buffers` are the workload's, by their names in the dag.
    """
    sketch = program.sketch
    primitives = Primitives(schedule, device.vector_bytes, buffers)
    tiles = TensorTiles(primitives, program, buffers)
    nests = Nests(primitives, program, tiles.levels)
    for stage in sketch.stages:
        if stage.placement is Placement.INLINE or nests.is_inlined(stage):
            schedule.compute_inline(schedule.get_sblock(stage.node))
    for stage in sketch.tiled:
        tiles.tile(stage)
    placed = [stage for stage in sketch.nests if not nests.is_inlined(stage)]
    for stage in reversed(placed):
        nests.place(stage)
    for stage in sketch.placed(Placement.UNROLLED):
        nests.unroll_constants(stage)
    for stage in placed:
        nests.annotate(stage)
    for stage in sketch.tiled:
        tiles.annotate(stage)
    for stage in placed:
        nests.decompose(stage)
    primitives.finish()
