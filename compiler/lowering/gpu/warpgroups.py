"""Lower the nodes of GPU programs that warpgroups compute: C[s, i, j] += A[s, i, k] * B[s, j, k]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.lowering.gpu.fragments import SHARED
from compiler.lowering.gpu.pipeline import pipeline
from compiler.lowering.gpu.tensor_cores import TensorTileLowering
from compiler.lowering.gpu.wgmma_intrinsics import WarpgroupProduct
from compiler.lowering.tensor_intrinsics import register
from core.trace import TENSOR_MAP
from search.sketches.tensor_core import BANKS, WIDE_SKEW
from search.sketches.variables import fetch_kind
from search.sketches.warpgroups import COLUMN_BYTES, GROUP_ROWS, GROUP_THREADS, MAP_BYTES, operand_matrices

# The bytes of a row of all banks of shared memory.
ROW_BYTES = 128
# The float32 or int32 results in a vector of 16 bytes.
OUTPUT_LANES = 4


class WarpgroupTileLowering(TensorTileLowering):
    """A matrix product tiled over blocks and warpgroups."""

    @property
    def threads(self) -> int:
        return GROUP_THREADS

    @property
    def _item_bytes(self) -> int:
        return self.program.sketch.dag.buffer[self.node.reads[0].buffer].item_bytes

    def tile(self) -> None:
        """Tile, fetch into tiles of columns, and replace the innermost loops by instructions. Inlined
        producers are computed while fetching, elementwise consumers while copying out.

            for s, i, j, k: C1[s, i, j] += A1[s, i, k] * B1[s, k, j]
        ->
            for blockIdx.x, threadIdx.y:                                 # s, i0, j0 and i1
                for k0:
                    for threadIdx.x: A_shared[k // 8, i, k % 8] = A[i, k]
                    for threadIdx.x: B_shared[j // 8, k, j % 8] = B[k, j]
                    wgmma_sync(C_fragment, A_shared, B_shared)           # 64 x columns x depth
                wgmma_store(C_shared, C_fragment)
                for threadIdx.x: C[...] = C_shared[...]
        """
        found, schedule = self._product, self.schedule
        matrices = operand_matrices(self.program.sketch.dag, self.node, found)
        has_maps = self.choice("tensor maps") == 1
        unit = (MAP_BYTES if has_maps else COLUMN_BYTES) // self._item_bytes
        product = WarpgroupProduct(
            self.choice("columns"), self.choice("depth"), found.operand, found.second_by_rows, unit
        )
        for name in product.names.values():
            register(name)
        inner = schedule.get_sblock(self.node.name)
        warpgroup, k0, tile = self._bind_groups(inner)
        fetches = [schedule.cache_read(inner, index, SHARED) for index in (found.first, found.second)]
        for fetch in fetches:
            schedule.transform_layout(fetch, ("write", 0), _in_columns(unit))
            schedule.transform_block_layout(fetch, _in_columns(unit))
        outer = schedule.blockize(tile)
        operands = [self.node.reads[index].buffer for index in (found.first, found.second)]
        for operand, fetch in zip(operands, fetches, strict=True):
            schedule.compute_at(fetch, k0, preserve_unit_loops=True)
            if not has_maps:
                self._fetch_columns(fetch, operand)
        for fetch in fetches:
            self.inline_producers(fetch)
        if has_maps:
            assert matrices is not None
            for fetch, matrix in zip(fetches, matrices, strict=True):
                tile = schedule.blockize(schedule.get_loops(fetch)[-3])
                schedule.annotate(tile, TENSOR_MAP, list(matrix))
        copy = schedule.cache_write(outer, 0, SHARED)
        store = schedule.cache_write(outer, 0, "wmma.accumulator")
        for block in (store, copy):
            schedule.reverse_compute_at(block, warpgroup, preserve_unit_loops=True)
        stored = self.replace_copy(store, (GROUP_ROWS, product.columns), product.names["store"])
        schedule.storage_align(stored, 0, -2, BANKS, WIDE_SKEW)
        start = schedule.decompose_reduction(outer, k0)
        (initial,) = schedule.get_child_blocks(start)
        schedule.tensorize(schedule.get_loops(initial)[-2], product.names["init"])
        schedule.tensorize(schedule.get_loops(inner)[-3], product.names["compute"])
        pipeline(self, k0, operands, self.choice("stages"), fetches_last=True)
        last = self.stage.epilogue or self.node.name
        buffer = self.program.sketch.dag.node[last].write.buffer
        self.copy_out(copy, buffer, OUTPUT_LANES)

    def _bind_groups(self, inner: Any) -> tuple[Any, Any, Any]:
        """Pad and split the axes of a matrix product, and bind the outer loops.

            for s, i, j, k
        ->
            for blockIdx.x, threadIdx.y, k0, ii, jj, kk          # ii: 64, jj: columns, kk: depth

        Returns the loops threadIdx.y, k0 and ii.
        """
        schedule = self.schedule
        sides = GROUP_ROWS, self.choice("columns"), self.choice("depth")
        groups = self.choice("warpgroups")
        tiles = [1, groups * sides[0], sides[1], sides[2]]
        extents = [int(schedule.get(loop).extent) for loop in schedule.get_loops(inner)]
        if any(extent % size for extent, size in zip(extents, tiles, strict=True)):
            schedule.pad_einsum(inner, tiles)
        batch, i, j, k = schedule.get_loops(inner)
        i0, i1, ii = schedule.split(i, [None, groups, sides[0]])
        j0, jj = schedule.split(j, [None, sides[1]])
        k0, kk = schedule.split(k, [None, sides[2]])
        schedule.reorder(i0, j0, i1, k0, ii, jj, kk)
        schedule.bind(schedule.fuse(batch, i0, j0), "blockIdx.x")
        schedule.bind(i1, "threadIdx.y")
        return i1, k0, ii

    def _fetch_columns(self, fetch: Any, name: str) -> None:
        """Fetch a tile of an operand with all threads of the block, into columns that start in different
        banks.

            for column, row, element: A_shared[column, row, element] = A[row, 8 * column + element]
        ->
            for k0:
                for n, threadIdx.y, threadIdx.x: for v in T.vectorized(lanes): A_shared[...] = A[...]
        """
        schedule = self.schedule
        schedule.storage_align(fetch, 0, -3, ROW_BYTES // self._item_bytes, COLUMN_BYTES // self._item_bytes)
        column, row, element = schedule.get_loops(fetch)[-3:]
        schedule.reorder(row, column, element)
        _, warpgroup, thread, vector = schedule.split(
            schedule.fuse(row, column, element),
            [None, self.choice("warpgroups"), GROUP_THREADS, self.choice(fetch_kind(name))],
        )
        schedule.bind(warpgroup, "threadIdx.y")
        schedule.bind(thread, "threadIdx.x")
        schedule.vectorize(vector)


def _in_columns(unit: int) -> Callable[[Any, Any, Any], tuple[Any, Any, Any, Any]]:
    return lambda batch, row, element: (batch, element // unit, row, element % unit)
