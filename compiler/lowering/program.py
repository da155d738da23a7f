"""Lower programs to schedule primitives. The kind of a stage selects its lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm.s_tir import Schedule

from compiler.lowering.cpu.nests import RowBlockLowering, UnrolledLowering, nest_lowering
from compiler.lowering.cpu.tensor_tiles import tile_lowering
from compiler.lowering.gpu.attention import AttentionLowering
from compiler.lowering.gpu.kernels import ThreadKernelLowering, ThreadLocalLowering
from compiler.lowering.gpu.online_attention import OnlineAttentionLowering
from compiler.lowering.gpu.rows import BlockReductionLowering, KeptInRegistersLowering, RowKernelLowering
from compiler.lowering.gpu.tensor_attention import TensorAttentionLowering
from compiler.lowering.gpu.tensor_cores import TensorTileLowering
from compiler.lowering.gpu.tiles import GpuTileLowering
from compiler.lowering.gpu.warpgroups import WarpgroupTileLowering
from compiler.lowering.primitives import Primitives
from compiler.lowering.stage import InlinedLowering, Lowering, StageLowering
from core.device import Device
from search.programs.program import Program
from search.sketches.stage import Stage, StageKind
from search.stages.cpu import LoopNest, RowBlock, Tiled, Unrolled
from search.stages.gpu import (
    Attended,
    AttentionKernel,
    BlockReduction,
    GpuTiled,
    KeptInRegisters,
    OnlineAttention,
    RowKernel,
    TensorAttention,
    TensorTiled,
    ThreadKernel,
    ThreadLocal,
    WarpgroupTiled,
)
from search.stages.inlined import Fused, Inlined

LOWERINGS: Mapping[type[Stage], Callable[[Lowering, Stage], StageLowering]] = {
    Inlined: InlinedLowering,
    Fused: StageLowering,  # its producer's lowering attaches it
    Tiled: tile_lowering,
    LoopNest: nest_lowering,
    Unrolled: UnrolledLowering,
    RowBlock: RowBlockLowering,
    GpuTiled: GpuTileLowering,
    TensorTiled: TensorTileLowering,
    WarpgroupTiled: WarpgroupTileLowering,
    ThreadKernel: ThreadKernelLowering,
    RowKernel: RowKernelLowering,
    BlockReduction: BlockReductionLowering,
    KeptInRegisters: KeptInRegistersLowering,
    ThreadLocal: ThreadLocalLowering,
    AttentionKernel: AttentionLowering,
    TensorAttention: TensorAttentionLowering,
    OnlineAttention: OnlineAttentionLowering,
    Attended: StageLowering,  # the kernel's lowering places it
}


def inlined_nodes(program: Program) -> tuple[str, ...]:
    """Return the nodes that a CPU program inlines, in the order in which they are inlined."""
    return tuple(
        stage.node
        for stage in program.sketch.stages
        if stage.kind is StageKind.INLINE
        or (stage.kind is StageKind.NEST and program.location(stage.node) == "inline")
    )


def lower_program(
    primitives: Primitives,
    program: Program,
    device: Device,
    buffers: Mapping[str, Any],
    *,
    is_inlined: bool = False,
) -> None:
    """Apply a program to the schedule of its workload by `primitives`. With `is_inlined`, the schedule has
    inlined the program's `inlined_nodes`.

        for i, j: A1[i, j] = exp(A[i, j])
        for i, j, k: C[i, j] += A1[i, k] * B[k, j]
        for i, j: D[i, j] = C[i, j] + E[j]
    ->                                                      # CPU: A1 inlined, C tiled, D fused
        for i0_j0 in T.parallel:
            for i1, j1:
                for k0, i2, j2, k1:
                    for i3 in T.unroll: for j3 in T.vectorized: C[i, j] += exp(A[i, k]) * B[k, j]
                for i, j: D[i, j] = C[i, j] + E[j]
    ->                                                      # GPU
        for blockIdx.x, vthread.x, threadIdx.x:
            for k0:
                for ...: A_shared[...] = exp(A[...]); B_shared[...] = B[...]
                for k1, i3, j3, k2, i4, j4: C_local[...] += A_shared[...] * B_shared[...]
            for ...: D[...] = C_local[...] + E[...]

    `buffers` maps names in the dag to the workload's buffers. Raises ValueError for a nest without threads on
    a GPU.
    """
    lowering = Lowering(primitives.schedule, program, device, buffers, primitives)
    for stage in program.sketch.stages:
        lowering.stages[stage.node] = LOWERINGS[type(stage)](lowering, stage)
    stages = list(lowering.stages.values())
    for each in stages:
        each.fetch()
    for each in stages:
        if not (is_inlined and isinstance(each, InlinedLowering)):
            each.inline()
    for each in stages:
        each.tile()
    for each in reversed(stages):
        each.place()
    for each in stages:
        each.annotate()
    for each in stages:
        each.fill_registers()
    for each in stages:
        each.decompose()
    primitives.finish()
    # Code generation binds the loops of an online softmax.
    if device.gpu is not None and not program.sketch.of_kind(StageKind.ONLINE_ATTENTION):
        _check_bound(primitives.schedule)


def _check_bound(schedule: Schedule) -> None:
    """Raise ValueError for a nest without threads: TVM would run it on the host, with pointers to device
    memory.
    """
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        bindings = [schedule.get(loop).thread_binding for loop in schedule.get_loops(block)]
        tags = " ".join(str(binding.thread_tag) for binding in bindings if binding is not None)
        if "blockIdx" not in tags or "threadIdx" not in tags:
            raise ValueError(f"{schedule.get(block).name_hint} is bound to no threads")
