"""Lower the tiled nodes of GPU programs: operands in shared memory, results in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.s_tir import Schedule

from compiler.lowering.primitives import by_level, unroll_up_to
from search.programs.gpu_nest import BLOCK, FETCH, THREAD
from search.programs.program import Program
from search.sketches.stage import Stage
from search.sketches.variables import fetch_kind

BINDINGS = ("blockIdx.x", "vthread.x", "threadIdx.x")


class GpuTiles:
    """`buffers` are the workload's, by their names in the dag."""

    def __init__(self, schedule: Schedule, program: Program, buffers: Mapping[str, Any]) -> None:
        self.schedule = schedule
        self.program = program
        self.buffers = buffers
        self.copies: dict[str, list[tuple[Any, int]]] = {}

    def fetch(self, stage: Stage) -> None:
        """Copy the operands to shared memory, in nests that `tile` moves into the kernel.

            for i, j, k: C[i, j] += A[i, k] * B[k, j]
        ->
            for i, k: A_shared[i, k] = A[i, k]
            for k, j: B_shared[k, j] = B[k, j]
            for i, j, k: C[i, j] += A_shared[i, k] * B_shared[k, j]
        """
        copies = []
        for name in stage.shared:
            block = self.schedule.get_sblock(stage.node)
            sources = [read.source for read in self.schedule.get(block).reads]
            index = next(i for i, source in enumerate(sources) if source.same_as(self.buffers[name]))
            copy = self.schedule.cache_read(block, index, "shared")
            copies.append((copy, int(self.program.choice(stage.node, fetch_kind(name)))))
        self.copies[stage.node] = copies

    def tile(self, stage: Stage) -> None:
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
        node = self.program.sketch.dag.node[stage.node]
        block = self.schedule.get_sblock(stage.node)
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
        for copy, lanes in self.copies[stage.node]:
            self._attach(copy, levels[FETCH], int(self.schedule.get(thread).extent), lanes)
        unroll_up_to(self.schedule, levels[BLOCK][0], int(self.program.choice(stage.node, "unroll")))
        self.schedule.decompose_reduction(block, levels[FETCH][0])

    def _attach(self, copy: Any, fetch: list[Any], threads: int, lanes: int) -> None:
        """Compute a copy inside the fetching loop, by all threads of the block.

            for i, k: A_shared[i, k] = A[i, k]
        ->
            for k0:
                for n in range(...): for threadIdx.x: for v in T.vectorized(lanes):
                    A_shared[...] = A[...]
        """
        self.schedule.compute_at(copy, fetch[-1], preserve_unit_loops=True)
        loops = self.schedule.get_loops(copy)
        own = self.schedule.fuse(*loops[len(BINDINGS) + len(fetch) :])
        if lanes > 1:
            _, thread, vector = self.schedule.split(own, [None, threads, lanes])
            self.schedule.vectorize(vector)
        else:
            _, thread = self.schedule.split(own, [None, threads])
        self.schedule.bind(thread, "threadIdx.x")
