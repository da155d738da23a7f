"""Programs for CPUs as schedule primitives: parallel chunks outside, vectors and register tiles inside."""

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
    """One walk over the sketch's stages: inline, tile, place, then annotate.

    `buffers` are the workload's, by their names in the dag.
    """
    sketch = program.sketch
    tools = Primitives(schedule, device.vector_bytes, buffers)
    tiles = TensorTiles(tools, program, buffers)
    nests = Nests(tools, program, tiles.levels)
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
    tools.finish()
