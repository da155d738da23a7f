"""Lower programs for CUDA GPUs to schedule primitives."""

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
    """Apply a program to the schedule of its workload: fetch, inline, then make every other nest a kernel.

        for i, j, k: C[i, j] += A[i, k] * B[k, j]
        for i, j: D[i, j] = C[i, j] + E[j]
    ->
        for blockIdx.x, vthread.x, threadIdx.x:
            for k0:
                for ...: A_shared[...] = A[...]; B_shared[...] = B[...]
                for k1, i3, j3, k2, i4, j4: C_local[...] += A_shared[...] * B_shared[...]
            for ...: D[...] = C_local[...] + E[...]

    `buffers` are the workload's, by their names in the dag. Raises ValueError for a nest without threads.
    """
    sketch = program.sketch
    tiles = GpuTiles(schedule, program, buffers)
    kernels = GpuKernels(schedule, program)
    tensors = GpuTensors(schedule, program, gpu, buffers)
    # Fetching comes first: nodes inlined after it are computed while fetching, not in the inner loops.
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
    """Raise ValueError for a nest without threads: TVM would run it on the host, on the device's memory."""
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        bindings = [schedule.get(loop).thread_binding for loop in schedule.get_loops(block)]
        tags = " ".join(str(binding.thread_tag) for binding in bindings if binding is not None)
        if "blockIdx" not in tags or "threadIdx" not in tags:
            raise ValueError(f"{schedule.get(block).name_hint} is bound to no threads")
