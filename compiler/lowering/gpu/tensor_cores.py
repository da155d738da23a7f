"""Nodes of GPU programs on tensor cores: C[s, i, j] += A[s, i, k] * B[s, j, k] in tiles of 16 x 16 x 16.

for blockIdx (s, i0, j0): for threadIdx.y (i1, j1):
    for k0: { fetch; for k1: { load fragments; for i2, j2: multiply and add } }
    store fragments in shared memory; copy out, with what is elementwise after it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import IterVar

from compiler.lowering.gpu.tiles import unroll_up_to
from compiler.lowering.tensor_intrinsics import register
from core.device import Gpu
from search.programs.program import Program
from search.sketches.stage import Stage
from search.sketches.tensor_core import BANKS, SIDE, SKEW, MatrixProduct, match_product
from search.sketches.variables import fetch_kind

SHORT = {"float16": "f16", "float32": "f32", "int8": "s8", "int32": "s32"}


class GpuTensors:
    """`buffers` are the workload's, by their names in the dag."""

    def __init__(self, schedule: Schedule, program: Program, gpu: Gpu, buffers: Mapping[str, Any]) -> None:
        self.schedule = schedule
        self.program = program
        self.gpu = gpu
        self.buffers = buffers

    def arrange(self, stage: Stage) -> None:
        """Gives the block the axes of a matrix product, and its operands and results copies that have them;
        before anything is inlined."""
        found, block = self._product(stage), self.schedule.get_sblock(stage.node)
        order = "skj" if found.second_by_rows else "sjk"
        copies = [
            (self.schedule.reindex(block, ("read", found.first)), "write", "sik"),
            (self.schedule.reindex(block, ("read", found.second)), "write", order),
            (self.schedule.reindex(block, ("write", 0)), "read", "sij"),
        ]
        described = self.schedule.get(block)
        axes = list(described.iter_vars)
        parts = [(part, int(axis.dom.extent)) for part, axis in zip(found.parts, axes, strict=True)]
        regions = [described.reads[found.first], described.reads[found.second], described.writes[0]]
        own = [[parts[_position(axes, dim.min)] for dim in region.region] for region in regions]
        for (copy, side, wanted), used in zip(copies, own, strict=True):
            self.schedule.transform_layout(copy, (side, 0), _fused(used, wanted))
        self.schedule.transform_block_layout(block, _fused(parts, "sijk"))

    def tensorize(self, stage: Stage) -> None:
        """Tiles, fetches and replaces the innermost loops by instructions; what was inlined is computed while
        fetching, what is elementwise afterwards while copying out."""
        found, inner = self._product(stage), self.schedule.get_sblock(stage.node)
        group = _instructions(found)
        outer, grid, warp, k0, k1 = self._tile(stage, inner)
        fetches = [self.schedule.cache_read(outer, index, "shared") for index in (found.first, found.second)]
        for index, fetch in zip((found.first, found.second), fetches, strict=True):
            self._fetch(stage, fetch, k0, self._node_read(stage, index), found)
        for fetch in fetches:
            self._inline_producers(fetch)
        fragments = [
            self.schedule.cache_read(outer, index, f"wmma.matrix_{which}")
            for index, which in ((found.first, "a"), (found.second, "b"))
        ]
        copy = self.schedule.cache_write(outer, 0, "shared")
        store = self.schedule.cache_write(outer, 0, "wmma.accumulator")
        for fragment, load in zip(fragments, ("load_a", "load_b"), strict=True):
            self.schedule.compute_at(fragment, k1, preserve_unit_loops=True)
            self._replace(fragment, group[load])
        for block in (store, copy):
            self.schedule.reverse_compute_at(block, warp, preserve_unit_loops=True)
        self._replace(store, group["store"])
        unroll_up_to(self.schedule, grid, int(self.program.choice(stage.node, "unroll")))
        start = self.schedule.decompose_reduction(outer, k0)
        (initial,) = self.schedule.get_child_blocks(start)
        self.schedule.tensorize(self.schedule.get_loops(initial)[-2], group["init"])
        self.schedule.tensorize(self.schedule.get_loops(inner)[-3], group["compute"])
        self._copy_out(stage, copy)

    def _product(self, stage: Stage) -> MatrixProduct:
        sketch = self.program.sketch
        found = match_product(sketch.dag, sketch.dag.node[stage.node], self.gpu)
        assert found is not None
        return found

    def _node_read(self, stage: Stage, index: int) -> str:
        return self.program.sketch.dag.node[stage.node].reads[index].buffer

    def _chosen(self, stage: Stage, kind: str) -> int:
        return int(self.program.choice(stage.node, kind))

    def _tile(self, stage: Stage, inner: Any) -> tuple[Any, Any, Any, Any, Any]:
        """The block of one instruction, and the loops over blocks, warps, fetches and instructions of one."""
        warps = [self._chosen(stage, f"warps {part}") for part in "ij"]
        counts = [self._chosen(stage, f"fragments {part}") for part in "ijk"]
        self._pad(inner, [warps[0] * counts[0], warps[1] * counts[1], counts[2]])
        split = self.schedule.split
        batch, *loops = self.schedule.get_loops(inner)
        (i, ii), (j, jj), (k, kk) = (split(loop, [None, SIDE]) for loop in loops)
        self.schedule.reorder(i, j, k, ii, jj, kk)
        outer = self.schedule.blockize(ii)
        i0, i1, i2 = split(i, [None, warps[0], counts[0]])
        j0, j1, j2 = split(j, [None, warps[1], counts[1]])
        k0, k1 = split(k, [None, counts[2]])
        self.schedule.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
        grid, warp = self.schedule.fuse(batch, i0, j0), self.schedule.fuse(i1, j1)
        self.schedule.bind(grid, "blockIdx.x")
        self.schedule.bind(warp, "threadIdx.y")
        return outer, grid, warp, k0, k1

    def _pad(self, block: Any, tiles: Sequence[int]) -> None:
        wanted = [1, *(SIDE * tile for tile in tiles)]
        extents = [int(self.schedule.get(loop).extent) for loop in self.schedule.get_loops(block)]
        if any(extent % size for extent, size in zip(extents, wanted, strict=True)):
            self.schedule.pad_einsum(block, wanted)

    def _fetch(self, stage: Stage, fetch: Any, k0: Any, name: str, found: MatrixProduct) -> None:
        self.schedule.compute_at(fetch, k0, preserve_unit_loops=True)
        self.schedule.storage_align(fetch, 0, -2, BANKS, SKEW[found.operand])
        loops = self.schedule.get_loops(fetch)[-2:]
        warps = self._chosen(stage, "warps i") * self._chosen(stage, "warps j")
        lanes = self._chosen(stage, fetch_kind(name))
        _, warp, thread, vector = self.schedule.split(
            self.schedule.fuse(*loops), [None, warps, self.gpu.warp_size, lanes]
        )
        self.schedule.bind(warp, "threadIdx.y")
        self.schedule.bind(thread, "threadIdx.x")
        self.schedule.vectorize(vector)

    def _inline_producers(self, block: Any) -> None:
        """Everything on the way from memory to a fetch, up to other kernels."""
        while producers := [p for p in self.schedule.get_producers(block) if not self._is_kernel(p)]:
            for producer in producers:
                self.schedule.compute_inline(producer)

    def _is_kernel(self, block: Any) -> bool:
        reduces = any(axis.iter_type == IterVar.CommReduce for axis in self.schedule.get(block).iter_vars)
        loops = self.schedule.get_loops(block)
        return reduces or any(self.schedule.get(loop).thread_binding is not None for loop in loops)

    def _copy_out(self, stage: Stage, copy: Any) -> None:
        """Out of shared memory, through everything up to the buffer that stays."""
        dag = self.program.sketch.dag
        last = dag.node[stage.epilogue or stage.node].write.buffer
        while not self.schedule.get(copy).writes[0].source.same_as(self.buffers[last]):
            for consumer in self.schedule.get_consumers(copy):
                self.schedule.reverse_compute_inline(consumer)
        narrow = dag.buffer[dag.node[stage.node].write.buffer].item_bytes == 2 and stage.epilogue is None
        loops = self.schedule.get_loops(copy)[-2:]
        _, thread, vector = self.schedule.split(
            self.schedule.fuse(*loops), [None, self.gpu.warp_size, 8 if narrow else 4]
        )
        self.schedule.bind(thread, "threadIdx.x")
        self.schedule.vectorize(vector)

    def _replace(self, block: Any, intrinsic: str) -> None:
        i, j = self.schedule.get_loops(block)[-2:]
        i, ii = self.schedule.split(i, [None, SIDE])
        j, jj = self.schedule.split(j, [None, SIDE])
        self.schedule.reorder(i, j, ii, jj)
        self.schedule.tensorize(ii, intrinsic)


def _instructions(found: MatrixProduct) -> Mapping[str, str]:
    """TVM's names of the instructions, known to TVM from now on."""
    operand, sums = SHORT[found.operand], SHORT[found.sums]
    transposed = "" if found.second_by_rows else "_trans"
    group = {
        "init": f"wmma_fill_16x16x16_{sums}",
        "load_a": f"wmma_load_16x16x16_{operand}_a_shared",
        "load_b": f"wmma_load_16x16x16_{operand}_b{transposed}_shared",
        "compute": f"wmma_sync_16x16x16_{operand}{operand}{sums}{transposed}",
        "store": f"wmma_store_16x16x16_{sums}_shared",
    }
    for name in group.values():
        register(name)
    return group


def _position(axes: Sequence[Any], used: Any) -> int:
    return next(index for index, axis in enumerate(axes) if axis.var.same_as(used))


def _fused(used: Sequence[tuple[str, int]], parts: str) -> Any:
    """An index map that fuses the axes of each part, in order; 0 for a part without axes."""

    def fuse(*indices: Any) -> list[Any]:
        found = []
        for part in parts:
            index: Any = tvm.tirx.const(0, "int32")
            for (own, extent), variable in zip(used, indices, strict=True):
                if own == part:
                    index = index * extent + variable
            found.append(index)
        return found

    return tvm.tirx.IndexMap.from_func(fuse, ndim=len(used), index_dtype="int32")
