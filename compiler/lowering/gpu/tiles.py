"""Lower the tiled nodes of GPU programs: operands in shared memory, results in registers."""

from __future__ import annotations

from typing import Any

from compiler.lowering.gpu.pipeline import pipeline
from compiler.lowering.primitives import by_level, unroll_up_to
from compiler.lowering.stage import Lowering, StageLowering
from search.programs.gpu_nest import BLOCK, FETCH, THREAD
from search.sketches.stage import Stage
from search.sketches.variables import fetch_kind

BINDINGS = ("blockIdx.x", "vthread.x", "threadIdx.x")


class GpuTileLowering(StageLowering):
    """A kernel tiled over blocks, virtual threads and threads."""

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        self._copies: list[tuple[Any, int]] = []

    def fetch(self) -> None:
        """Copy the operands to shared memory in nests that `tile` moves into the kernel.

            for i, j, k: C[i, j] += A[i, k] * B[k, j]
        ->
            for i, k: A_shared[i, k] = A[i, k]
            for k, j: B_shared[k, j] = B[k, j]
            for i, j, k: C[i, j] += A_shared[i, k] * B_shared[k, j]
        """
        for name in self.stage.shared:
            block = self.schedule.get_sblock(self.node.name)
            sources = [read.source for read in self.schedule.get(block).reads]
            index = next(i for i, source in enumerate(sources) if source.same_as(self.buffers[name]))
            copy = self.schedule.cache_read(block, index, "shared")
            self._copies.append((copy, self.choice(fetch_kind(name))))

    def tile(self) -> None:
        """Split every axis, bind the outer levels, and attach the copies and the epilogue.

            for i, j, k: C[i, j] += A_shared[i, k] * B_shared[k, j]
            for i, j: D[i, j] = relu(C[i, j])
        ->
            for blockIdx.x, vthread.x, threadIdx.x:
                for k0:
                    for ...: A_shared[...] = A[...]; B_shared[...] = B[...]
                    for k1, i3, j3, k2, i4, j4: C_local[...] += A_shared[...] * B_shared[...]
                for ...: D[...] = relu(C_local[...])
        """
        node, stage = self.node, self.stage
        block = self.schedule.get_sblock(node.name)
        if stage.epilogue is None:
            copy_out = self.schedule.cache_write(block, 0, "local")
        else:
            self.schedule.set_scope(block, 0, "local")
            copy_out = self.schedule.get_sblock(stage.epilogue)
        parts = [
            list(self.schedule.split(loop, list(self.program.factors(node.name, axis))))
            for axis, loop in enumerate(self.schedule.get_loops(block))
        ]
        levels = by_level(stage.structure, node, parts)
        self.schedule.reorder(*(loop for level in levels for loop in level))
        for level, thread in enumerate(BINDINGS):
            levels[level] = [self.schedule.fuse(*levels[level])]
            self.schedule.bind(levels[level][0], thread)
        thread = levels[THREAD][0]
        self.schedule.reverse_compute_at(copy_out, thread, preserve_unit_loops=True)
        for copy, lanes in self._copies:
            self._attach(copy, levels[FETCH], int(self.schedule.get(thread).extent), lanes)
        unroll_up_to(self.schedule, levels[BLOCK][0], self.choice("unroll"))
        self.schedule.decompose_reduction(block, levels[FETCH][0])
        if self._copies:
            pipeline(self, levels[FETCH][-1], stage.shared, self.choice("stages"))

    def _attach(self, copy: Any, fetch: list[Any], threads: int, lanes: int) -> None:
        """Compute a copy inside the loop that fetches tiles, with all threads of the block.

            for i, k: A_shared[i, k] = A[i, k]
        ->
            for k0:
                for n in range(...): for threadIdx.x: for v in T.vectorized(lanes):
                    A_shared[...] = A[...]

        The vector is split off before the loops are fused. Otherwise TVM doesn't see that padding has all or
        none of its elements, and loads each of them.
        """
        self.schedule.compute_at(copy, fetch[-1], preserve_unit_loops=True)
        own = self.schedule.get_loops(copy)[len(BINDINGS) + len(fetch) :]
        if lanes > 1:
            own[-1], vector = self.schedule.split(own[-1], [None, lanes])
            self.schedule.vectorize(vector)
        _, thread = self.schedule.split(self.schedule.fuse(*own), [None, threads])
        self.schedule.bind(thread, "threadIdx.x")
