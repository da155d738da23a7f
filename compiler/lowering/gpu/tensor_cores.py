"""Lower the nodes of GPU programs that tensor cores compute: C[s, i, j] += A[s, i, k] * B[s, j, k]."""

from __future__ import annotations

from typing import Any

from compiler.lowering.gpu.fragments import SHARED, FragmentLowering, instructions
from compiler.lowering.gpu.pipeline import pipeline
from compiler.lowering.primitives import unroll_up_to
from compiler.lowering.stage import Lowering
from search.sketches.stage import Stage
from search.sketches.tensor_core import BANKS, SIDE, WIDE_SKEW, match_product
from search.sketches.variables import fetch_kind


class TensorTileLowering(FragmentLowering):
    """A matrix product tiled over blocks and warps."""

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        assert self.device.gpu is not None
        product = match_product(self.program.sketch.dag, self.node, self.device.gpu)
        assert product is not None
        self._product = product

    def fetch(self) -> None:
        self.as_product(self.node, self._product)

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
        outer, grid, warp, k0, k1 = self._bind(inner)
        fetches = [self.schedule.cache_read(outer, index, SHARED) for index in (found.first, found.second)]
        operands = [self.node.reads[index].buffer for index in (found.first, found.second)]
        warps = self.choice("warps i") * self.choice("warps j")
        for operand, fetch, skew in zip(operands, fetches, found.skews, strict=True):
            self.fetch_operand(fetch, k0, skew, warps, self.choice(fetch_kind(operand)))
        for fetch in fetches:
            self.inline_producers(fetch)
        fragments = self.read_fragments(outer, found)
        copy = self.schedule.cache_write(outer, 0, SHARED)
        store = self.schedule.cache_write(outer, 0, "wmma.accumulator")
        self.load_fragments(fragments, k1, found)
        for block in (store, copy):
            self.schedule.reverse_compute_at(block, warp, preserve_unit_loops=True)
        stored = self.replace_copy(store, (SIDE, SIDE), instructions(found)["store"])
        self.schedule.storage_align(stored, 0, -2, BANKS, WIDE_SKEW)
        unroll_up_to(self.schedule, grid, self.choice("unroll"))
        self.multiply(inner, outer, k0, found)
        pipeline(self, k0, operands, self.choice("stages"))
        dag, epilogue = self.program.sketch.dag, self.stage.epilogue
        narrow = dag.buffer[self.node.write.buffer].item_bytes == 2 and epilogue is None
        self.copy_out(copy, dag.node[epilogue or self.node.name].write.buffer, 8 if narrow else 4)

    def _bind(self, inner: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Split the axes of a matrix product, and bind the outer loops.

            for s, i, j, k, ii, jj, kk
        ->
            for blockIdx.x, threadIdx.y, k0, k1, i2, j2, ii, jj, kk

        Returns the block around ii, jj and kk, and the loops blockIdx.x, threadIdx.y, k0 and k1.
        """
        warps = [self.choice(f"warps {part}") for part in "ij"]
        counts = [self.choice(f"fragments {part}") for part in "ijk"]
        sides = [SIDE * warps[0] * counts[0], SIDE * warps[1] * counts[1], self._product.depth * counts[2]]
        outer, (batch, i, j, k) = self.blockize(inner, self._product, [1, *sides])
        split = self.schedule.split
        i0, i1, i2 = split(i, [None, warps[0], counts[0]])
        j0, j1, j2 = split(j, [None, warps[1], counts[1]])
        k0, k1 = split(k, [None, counts[2]])
        self.schedule.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
        grid, warp = self.schedule.fuse(batch, i0, j0), self.schedule.fuse(i1, j1)
        self.schedule.bind(grid, "blockIdx.x")
        self.schedule.bind(warp, "threadIdx.y")
        return outer, grid, warp, k0, k1
