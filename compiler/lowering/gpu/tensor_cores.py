"""Lower the nodes of GPU programs that tensor cores compute: C[s, i, j] += A[s, i, k] * B[s, j, k]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.tirx import IterVar

from compiler.lowering.gpu.pipeline import pipeline
from compiler.lowering.primitives import unroll_up_to
from compiler.lowering.stage import Lowering, StageLowering
from compiler.lowering.tensor_intrinsics import register
from search.sketches.stage import Stage
from search.sketches.tensor_core import BANKS, SIDE, WIDE_SKEW, MatrixProduct, match_product
from search.sketches.variables import fetch_kind

# Abbreviations of types in the names of TVM's intrinsics.
TYPE_ABBREVIATIONS = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tf32": "tf32",
    "float32": "f32",
    "int8": "s8",
    "int32": "s32",
}
# Dynamic shared memory: the launch sets its size, which may exceed the limit of static shared memory.
SHARED = "shared.dyn"


class TensorTileLowering(StageLowering):
    """A matrix product tiled over blocks and warps."""

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        assert self.device.gpu is not None
        self._warp_size = self.device.gpu.warp_size
        product = match_product(self.program.sketch.dag, self.node, self.device.gpu)
        assert product is not None
        self._product = product

    def fetch(self) -> None:
        """Rewrite the block to the axes of a matrix product, with copies of its operands and its result that
        have these axes.

            for n, h, w, o, c: C[n, h, w, o] += A[n, h, w, c] * B[c, o]
        ->
            for n, h, w, c: A1[0, (n * H + h) * W + w, c] = A[n, h, w, c]
            for c, o: B1[0, c, o] = B[c, o]
            for s, i, j, k: C1[s, i, j] += A1[s, i, k] * B1[s, k, j]
            for n, h, w, o: C[n, h, w, o] = C1[0, (n * H + h) * W + w, o]
        """
        found, block = self._product, self.schedule.get_sblock(self.node.name)
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

        def part_of(used: Any) -> tuple[str, int]:
            return next(part for part, axis in zip(parts, axes, strict=True) if axis.var.same_as(used))

        own = [[part_of(dim.min) for dim in region.region] for region in regions]
        for (copy, side, wanted), used in zip(copies, own, strict=True):
            self.schedule.transform_layout(copy, (side, 0), _fuse_parts(used, wanted))
        self.schedule.transform_block_layout(block, _fuse_parts(parts, "sijk"))

    def tile(self) -> None:
        """Tile, fetch, and replace the innermost loops by instructions. Inlined producers are computed while
        fetching, elementwise consumers while copying out.

            for s, i, j, k: C1[s, i, j] += A1[s, i, k] * B1[s, k, j]
        ->
            for blockIdx.x, threadIdx.y:                                 # s, i0, j0 and i1, j1
                for k0:
                    for threadIdx.x: A_shared[...] = A[...]; B_shared[...] = B[...]
                    for k1:
                        wmma_load(A_fragment, A_shared); wmma_load(B_fragment, B_shared)
                        for i2, j2: wmma_sync(C_fragment, A_fragment, B_fragment)
                wmma_store(C_shared, C_fragment)
                for threadIdx.x: C[...] = C_shared[...]
        """
        found, inner = self._product, self.schedule.get_sblock(self.node.name)
        group = _instructions(found)
        outer, grid, warp, k0, k1 = self._bind(inner)
        fetches = [self.schedule.cache_read(outer, index, SHARED) for index in (found.first, found.second)]
        operands = [self.node.reads[index].buffer for index in (found.first, found.second)]
        for operand, fetch, skew in zip(operands, fetches, found.skews, strict=True):
            self._fetch(fetch, k0, operand, skew)
        for fetch in fetches:
            self._inline_producers(fetch)
        fragments = [
            self.schedule.cache_read(outer, index, f"wmma.matrix_{which}")
            for index, which in ((found.first, "a"), (found.second, "b"))
        ]
        copy = self.schedule.cache_write(outer, 0, SHARED)
        store = self.schedule.cache_write(outer, 0, "wmma.accumulator")
        second = (found.depth, SIDE) if found.second_by_rows else (SIDE, found.depth)
        loads = ((SIDE, found.depth), group["load_a"]), (second, group["load_b"])
        for fragment, (sides, load) in zip(fragments, loads, strict=True):
            self.schedule.compute_at(fragment, k1, preserve_unit_loops=True)
            self._replace(fragment, sides, load)
        for block in (store, copy):
            self.schedule.reverse_compute_at(block, warp, preserve_unit_loops=True)
        stored = self._replace(store, (SIDE, SIDE), group["store"])
        self.schedule.storage_align(stored, 0, -2, BANKS, WIDE_SKEW)
        unroll_up_to(self.schedule, grid, self.choice("unroll"))
        start = self.schedule.decompose_reduction(outer, k0)
        (initial,) = self.schedule.get_child_blocks(start)
        self.schedule.tensorize(self.schedule.get_loops(initial)[-2], group["init"])
        self.schedule.tensorize(self.schedule.get_loops(inner)[-3], group["compute"])
        pipeline(self, k0, operands, self.choice("stages"))
        self._copy_out(copy)

    def _bind(self, inner: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Pad and split the axes of a matrix product, and bind the outer loops.

            for s, i, j, k
        ->
            for blockIdx.x, threadIdx.y, k0, k1, i2, j2, ii, jj, kk     # ii, jj, kk: 16 each; kk: 8 in TF32

        Returns the block around ii, jj and kk, and the loops blockIdx.x, threadIdx.y, k0 and k1.
        """
        warps = [self.choice(f"warps {part}") for part in "ij"]
        counts = [self.choice(f"fragments {part}") for part in "ijk"]
        depth = self._product.depth
        tiles = [1, SIDE * warps[0] * counts[0], SIDE * warps[1] * counts[1], depth * counts[2]]
        extents = [int(self.schedule.get(loop).extent) for loop in self.schedule.get_loops(inner)]
        if any(extent % size for extent, size in zip(extents, tiles, strict=True)):
            self.schedule.pad_einsum(inner, tiles)
        split = self.schedule.split
        batch, *loops = self.schedule.get_loops(inner)
        (i, ii), (j, jj), (k, kk) = (
            split(loop, [None, side]) for loop, side in zip(loops, (SIDE, SIDE, depth), strict=True)
        )
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

    def _fetch(self, fetch: Any, k0: Any, name: str, skew: int) -> None:
        """Fetch a tile of an operand with all threads of the block, into rows that start in different banks.

            for i, k: A_shared[i, k] = A[i, k]
        ->
            for k0:
                for n, threadIdx.y, threadIdx.x: for v in T.vectorized(lanes): A_shared[...] = A[...]
        """
        self.schedule.compute_at(fetch, k0, preserve_unit_loops=True)
        self.schedule.storage_align(fetch, 0, -2, BANKS, skew)
        loops = self.schedule.get_loops(fetch)[-2:]
        warps = self.choice("warps i") * self.choice("warps j")
        lanes = self.choice(fetch_kind(name))
        _, warp, thread, vector = self.schedule.split(
            self.schedule.fuse(*loops), [None, warps, self._warp_size, lanes]
        )
        self.schedule.bind(warp, "threadIdx.y")
        self.schedule.bind(thread, "threadIdx.x")
        self.schedule.vectorize(vector)

    def _inline_producers(self, block: Any) -> None:
        """Inline everything computed between global memory and a fetch.

            for i, k: A1[i, k] = relu(A[i, k])
            for i, k: A_shared[i, k] = A1[i, k]
        ->
            for i, k: A_shared[i, k] = relu(A[i, k])
        """

        def is_kernel(producer: Any) -> bool:
            axes, loops = self.schedule.get(producer).iter_vars, self.schedule.get_loops(producer)
            reduces = any(axis.iter_type == IterVar.CommReduce for axis in axes)
            return reduces or any(self.schedule.get(loop).thread_binding is not None for loop in loops)

        while producers := [p for p in self.schedule.get_producers(block) if not is_kernel(p)]:
            for producer in producers:
                self.schedule.compute_inline(producer)

    def _copy_out(self, copy: Any) -> None:
        """Copy the result out of shared memory, and inline the elementwise consumers into the copy.

            for i, j: C1[i, j] = C_shared[i, j]
            for i, j: D[i, j] = C1[i, j] + E[j]
        ->
            for n, threadIdx.x: for v in T.vectorized(4): D[...] = C_shared[...] + E[...]
        """
        dag, epilogue = self.program.sketch.dag, self.stage.epilogue
        last = dag.node[epilogue or self.node.name].write.buffer
        while not self.schedule.get(copy).writes[0].source.same_as(self.buffers[last]):
            for consumer in self.schedule.get_consumers(copy):
                self.schedule.reverse_compute_inline(consumer)
        narrow = dag.buffer[self.node.write.buffer].item_bytes == 2 and epilogue is None
        loops = self.schedule.get_loops(copy)[-2:]
        _, thread, vector = self.schedule.split(
            self.schedule.fuse(*loops), [None, self._warp_size, 8 if narrow else 4]
        )
        self.schedule.bind(thread, "threadIdx.x")
        self.schedule.vectorize(vector)

    def _replace(self, block: Any, sides: tuple[int, int], intrinsic: str) -> Any:
        """Replace a copy of fragments with an intrinsic, and return the block that has it.

        for i, j -> for i0, j0: wmma_load(16 x 16)
        """
        i, j = self.schedule.get_loops(block)[-2:]
        i, ii = self.schedule.split(i, [None, sides[0]])
        j, jj = self.schedule.split(j, [None, sides[1]])
        self.schedule.reorder(i, j, ii, jj)
        self.schedule.tensorize(ii, intrinsic)
        (replaced,) = self.schedule.get_child_blocks(j)
        return replaced


def _instructions(found: MatrixProduct) -> Mapping[str, str]:
    """Register the instructions with TVM. Return TVM's name of each by its role."""
    operand, sums = TYPE_ABBREVIATIONS[found.operand], TYPE_ABBREVIATIONS[found.sums]
    transposed = "" if found.second_by_rows else "_trans"
    shape = f"{SIDE}x{SIDE}x{found.depth}"
    group = {
        "init": f"wmma_fill_{shape}_{sums}",
        "load_a": f"wmma_load_{shape}_{operand}_a_shared_dyn",
        "load_b": f"wmma_load_{shape}_{operand}_b{transposed}_shared_dyn",
        "compute": f"wmma_sync_{shape}_{operand}{operand}{sums}{transposed}",
        "store": f"wmma_store_{shape}_{sums}_shared_dyn",
    }
    for name in group.values():
        register(name)
    return group


def _fuse_parts(axes: Sequence[tuple[str, int]], parts: str) -> Any:
    """Return an index map that fuses the axes of each part, in order; 0 for a part without axes.

    axes (i, 8), (i, 4), (k, 32) and parts "sik":  n, h, c -> 0, n * 4 + h, c
    """

    def fuse(*indices: Any) -> list[Any]:
        fused = []
        for part in parts:
            index: Any = tvm.tirx.const(0, "int32")
            for (own, extent), variable in zip(axes, indices, strict=True):
                if own == part:
                    index = index * extent + variable
            fused.append(index)
        return fused

    return tvm.tirx.IndexMap.from_func(fuse, ndim=len(axes), index_dtype="int32")
