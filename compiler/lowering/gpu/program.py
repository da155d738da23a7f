"""Programs for CUDA GPUs as schedule primitives: every nest becomes a kernel, bound to blocks and threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.s_tir import Schedule

from compiler.lowering.gpu.kernels import GpuKernels
from compiler.lowering.gpu.tensor_cores import GpuTensors
from compiler.lowering.gpu.tiles import GpuTiles
from core.device import Gpu
from search.programs.program import Program
from search.sketches.stage import Placement


def lower_gpu(schedule: Schedule, program: Program, gpu: Gpu, buffers: Mapping[str, Any]) -> None:
    """One walk over the sketch's stages: fetch, inline, then a kernel for each that is left.

    `buffers` are the workload's, by their names in the dag. Raises ValueError if some nest has no threads.
    """
    sketch = program.sketch
    tiles = GpuTiles(schedule, program, buffers)
    kernels = GpuKernels(schedule, program)
    tensors = GpuTensors(schedule, program, gpu, buffers)
    # What is inlined later is computed while it is fetched, not at every step of the inner loops.
    for stage in sketch.tiled:
        tiles.fetch(stage)
    for stage in sketch.placed(Placement.TENSOR):
        tensors.arrange(stage)
    for stage in sketch.placed(Placement.INLINE):
        schedule.compute_inline(schedule.get_sblock(stage.node))
    for stage in sketch.tiled:
        tiles.tile(stage)
    for stage in sketch.placed(Placement.THREADS):
        kernels.threads(stage)
    for stage in sketch.placed(Placement.ROWS):
        kernels.rows(stage)
    for stage in sketch.placed(Placement.TENSOR):
        tensors.tensorize(stage)
    _check_bound(schedule)


def _check_bound(schedule: Schedule) -> None:
    """TVM takes a nest without threads for the host's, and lets it touch the device's memory."""
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        bindings = [schedule.get(loop).thread_binding for loop in schedule.get_loops(block)]
        tags = " ".join(str(binding.thread_tag) for binding in bindings if binding is not None)
        if "blockIdx" not in tags or "threadIdx" not in tags:
            raise ValueError(f"{schedule.get(block).name_hint} is bound to no threads")
