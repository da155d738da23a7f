"""Tiled nodes of GPU programs: operands in shared memory, results in registers, four levels of tiles.

for blockIdx: for vthread: for threadIdx:
    for R0: { fetch; for R1, S3, R2, S4: multiply and add }
    epilogue or copy
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.s_tir import Schedule

from compiler.lowering.primitives import by_level
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
        """Copies of the operands in shared memory, still nests of their own."""
        self.copies[stage.node] = [
            (self._copy(stage.node, name), int(self.program.choice(stage.node, fetch_kind(name))))
            for name in stage.shared
        ]

    def tile(self, stage: Stage) -> None:
        """Splits every axis, binds the outer levels, attaches the copies and the epilogue."""
        node = self.program.sketch.dag.node[stage.node]
        block = self.schedule.get_sblock(stage.node)
        last = self._last(stage, block)
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
        self.schedule.reverse_compute_at(last, thread, preserve_unit_loops=True)
        for copy, lanes in self.copies[stage.node]:
            self._attach(copy, levels[FETCH], int(self.schedule.get(thread).extent), lanes)
        unroll_up_to(self.schedule, levels[BLOCK][0], int(self.program.choice(stage.node, "unroll")))
        self.schedule.decompose_reduction(block, levels[FETCH][0])

    def _copy(self, node: str, name: str) -> Any:
        block = self.schedule.get_sblock(node)
        sources = [read.source for read in self.schedule.get(block).reads]
        index = next(i for i, source in enumerate(sources) if source.same_as(self.buffers[name]))
        return self.schedule.cache_read(block, index, "shared")

    def _last(self, stage: Stage, block: Any) -> Any:
        """What takes the results out of the registers."""
        if stage.epilogue is None:
            return self.schedule.cache_write(block, 0, "local")
        self.schedule.set_scope(block, 0, "local")
        return self.schedule.get_sblock(stage.epilogue)

    def _attach(self, copy: Any, fetch: list[Any], threads: int, lanes: int) -> None:
        """for ax...: S[ax] = A[ax]  ->  in the fetching loop, for i: for threadIdx: vector: S[.] = A[.]"""
        self.schedule.compute_at(copy, fetch[-1], preserve_unit_loops=True)
        loops = self.schedule.get_loops(copy)
        own = self.schedule.fuse(*loops[len(BINDINGS) + len(fetch) :])
        if lanes > 1:
            _, thread, vector = self.schedule.split(own, [None, threads, lanes])
            self.schedule.vectorize(vector)
        else:
            _, thread = self.schedule.split(own, [None, threads])
        self.schedule.bind(thread, "threadIdx.x")


def unroll_up_to(schedule: Schedule, loop: Any, steps: int) -> None:
    """Lets the compiler unroll what is inside `loop` as long as no more than so many steps come of it."""
    if steps:
        schedule.annotate(loop, "pragma_auto_unroll_max_step", steps)
        schedule.annotate(loop, "pragma_unroll_explicit", 1)
