"""Kernels of GPU programs that are not tiled: iterations spread over threads, rows reduced by all threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import IterVar

from compiler.lowering.gpu.tiles import unroll_up_to
from search.dag import Node
from search.programs.program import Program
from search.sketches.stage import Placement, Stage


class GpuKernels:
    def __init__(self, schedule: Schedule, program: Program) -> None:
        self.schedule = schedule
        self.program = program

    def threads(self, stage: Stage) -> None:
        """for s...: for r...  ->  for blockIdx: for threadIdx: (vector) for r...

        Reductions are summed up in registers and stored once; loops over constant matrices are unrolled.
        """
        node, block = self._node(stage), self.schedule.get_sblock(stage.node)
        loops = self.schedule.get_loops(block)
        last = self._results(stage, block) if node.reduction else []
        spread = [loops[axis] for axis in node.looped_spatial]
        constant = [loops[axis] for axis in node.constant_axes]
        summed = [loops[axis] for axis in node.reduction if axis not in node.constant_axes]
        spread = spread or [self.schedule.add_unit_loop(loops[0] if loops else block)]
        self.schedule.reorder(*spread, *summed, *constant)
        thread = self._bind(self.schedule.fuse(*spread), stage)
        for loop in constant:
            self.schedule.unroll(loop)
        for block_after in last:
            self.schedule.reverse_compute_at(block_after, thread, preserve_unit_loops=True)
        for local in self._hosted(stage, Placement.LOCAL):
            self._compute_at(local, thread)
        if node.reduction:
            unroll_up_to(self.schedule, thread, int(self.program.choice(stage.node, "unroll")))
            self.schedule.decompose_reduction(block, [*summed, *constant][0])

    def rows(self, stage: Stage) -> None:
        """A chain over rows (softmax, layer norm) in one kernel: every node is computed with its rows.

        max; exp; sum; divide  ->  for blockIdx: for threadIdx.y: { for threadIdx.x: max; sum; divide }
        """
        node, block = self._node(stage), self.schedule.get_sblock(stage.node)
        loops = self.schedule.get_loops(block)
        rows = [loops[axis] for axis in stage.rows]
        beside = [loops[axis] for axis in node.spatial if axis not in stage.rows]
        summed = [loops[axis] for axis in node.reduction]
        rows = rows or [self.schedule.add_unit_loop(loops[0] if loops else block)]
        if not beside and not summed:
            # One element a row: the first thread stores it.
            beside = [self.schedule.add_unit_loop(block)]
        self.schedule.reorder(*rows, *beside, *summed)
        row = self._bind_rows(self.schedule.fuse(*rows), int(self.program.choice(stage.node, "rows")))
        self._across(summed or beside, stage.node)
        for member in reversed(self._hosted(stage, Placement.ACROSS)):
            self._reduce_at(member, row)

    def _node(self, stage: Stage) -> Node:
        return self.program.sketch.dag.node[stage.node]

    def _hosted(self, stage: Stage, placement: Placement) -> list[Stage]:
        return [s for s in self.program.sketch.placed(placement) if s.host == stage.node]

    def _results(self, stage: Stage, block: Any) -> list[Any]:
        """What takes the results out of the registers."""
        if stage.epilogue is not None:
            self.schedule.set_scope(block, 0, "local")
            return [self.schedule.get_sblock(stage.epilogue)]
        writes = range(len(self.schedule.get(block).writes))
        return [self.schedule.cache_write(block, index, "local") for index in writes]

    def _bind(self, fused: Any, stage: Stage) -> Any:
        """The loop of the threads."""
        lanes = 1
        if self.program.sketch.choice(stage.node, "lanes"):
            lanes = int(self.program.choice(stage.node, "lanes"))
        # Surplus threads would store what they never computed when there is one result.
        extent = int(self.schedule.get(fused).extent) // lanes
        threads = min(int(self.program.choice(stage.node, "threads")), extent)
        if lanes > 1:
            fused, vector = self.schedule.split(fused, [None, lanes])
            self.schedule.vectorize(vector)
        grid, thread = self.schedule.split(fused, [None, threads])
        self.schedule.bind(grid, "blockIdx.x")
        self.schedule.bind(thread, "threadIdx.x")
        return thread

    def _bind_rows(self, row: Any, count: int) -> Any:
        """The innermost loop over rows: `count` of them in a block."""
        if count == 1:
            self.schedule.bind(row, "blockIdx.x")
            return row
        outer, inner = self.schedule.split(row, [None, count])
        self.schedule.bind(outer, "blockIdx.x")
        self.schedule.bind(inner, "threadIdx.y")
        return inner

    def _across(self, loops: Sequence[Any], target: str) -> None:
        threads = int(self.program.choice(target, "threads"))
        _, inner = self.schedule.split(self.schedule.fuse(*loops), [None, threads])
        self.schedule.bind(inner, "threadIdx.x")

    def _reduce_at(self, stage: Stage, row: Any) -> None:
        block = self._compute_at(stage, row)
        axes = self.schedule.get(block).iter_vars
        own = list(zip(self.schedule.get_loops(block)[-len(axes) :], axes, strict=True))
        summed = [loop for loop, axis in own if axis.iter_type == IterVar.CommReduce]
        beside = [loop for loop, axis in own if axis.iter_type != IterVar.CommReduce]
        self.schedule.reorder(*beside, *summed)
        assert stage.host is not None
        self._across(summed, stage.host)

    def _compute_at(self, stage: Stage, loop: Any) -> Any:
        """Results in registers: TVM gives every thread those of a reduction across threads. (In shared memory
        it would leave out barriers between rows.)"""
        block = self.schedule.get_sblock(stage.node)
        self.schedule.compute_at(block, loop, preserve_unit_loops=True)
        for index in range(len(self.schedule.get(block).writes)):
            self.schedule.set_scope(block, index, "local")
        return block
