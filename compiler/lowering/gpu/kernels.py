"""Lower the untiled nodes of GPU programs: results spread over threads, rows reduced by threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import IterVar

from compiler.lowering.primitives import unroll_up_to
from search.dag import Node
from search.programs.program import Program
from search.sketches.stage import Placement, Stage


class GpuKernels:
    def __init__(self, schedule: Schedule, program: Program) -> None:
        self.schedule = schedule
        self.program = program

    def threads(self, stage: Stage) -> None:
        """Spread the results of a node over threads. Each thread reduces in registers and stores once; loops
        over constant matrices are unrolled.

            for i, j, k: C[i, j] += A[i, j, k]
        ->
            for blockIdx.x, threadIdx.x:
                c = 0
                for k: c += A[i, j, k]
                C[i, j] = c
        """
        node, block = self._node(stage), self.schedule.get_sblock(stage.node)
        loops = self.schedule.get_loops(block)
        copies_out = self._keep_in_registers(stage, block) if node.reduction else []
        spread = [loops[axis] for axis in node.looped_spatial]
        constant = [loops[axis] for axis in node.constant_axes]
        summed = [loops[axis] for axis in node.reduction if axis not in node.constant_axes]
        spread = spread or [self.schedule.add_unit_loop(loops[0] if loops else block)]
        self.schedule.reorder(*spread, *summed, *constant)
        thread = self._bind(self.schedule.fuse(*spread), stage)
        for loop in constant:
            self.schedule.unroll(loop)
        for copy_out in copies_out:
            self.schedule.reverse_compute_at(copy_out, thread, preserve_unit_loops=True)
        for local in self._hosted(stage, Placement.LOCAL):
            self._compute_at(local, thread)
        if node.reduction:
            unroll_up_to(self.schedule, thread, int(self.program.choice(stage.node, "unroll")))
            self.schedule.decompose_reduction(block, [*summed, *constant][0])

    def rows(self, stage: Stage) -> None:
        """Compute a chain over rows (softmax, layer norm) in one kernel, each row by the threads of a block.

            for i, k: m[i] = max(m[i], A[i, k])
            for i, k: s[i] += exp(A[i, k] - m[i])
            for i, k: B[i, k] = exp(A[i, k] - m[i]) / s[i]
        ->
            for blockIdx.x, threadIdx.y:                                 # i
                for k0, threadIdx.x: m = max(m, A[i, k])
                for k0, threadIdx.x: s += exp(A[i, k] - m)
                for k0, threadIdx.x: B[i, k] = exp(A[i, k] - m) / s
        """
        node, block = self._node(stage), self.schedule.get_sblock(stage.node)
        loops = self.schedule.get_loops(block)
        rows = [loops[axis] for axis in stage.rows]
        beside = [loops[axis] for axis in node.spatial if axis not in stage.rows]
        summed = [loops[axis] for axis in node.reduction]
        rows = rows or [self.schedule.add_unit_loop(loops[0] if loops else block)]
        if not beside and not summed:
            # The row has one element, which the first thread stores.
            beside = [self.schedule.add_unit_loop(block)]
        self.schedule.reorder(*rows, *beside, *summed)
        row = self.schedule.fuse(*rows)
        count = int(self.program.choice(stage.node, "rows"))
        if count == 1:
            self.schedule.bind(row, "blockIdx.x")
        else:
            outer, row = self.schedule.split(row, [None, count])
            self.schedule.bind(outer, "blockIdx.x")
            self.schedule.bind(row, "threadIdx.y")
        self._bind_across(summed or beside, stage.node)
        for member in reversed(self._hosted(stage, Placement.ACROSS)):
            self._reduce_at(member, row)

    def _node(self, stage: Stage) -> Node:
        return self.program.sketch.dag.node[stage.node]

    def _hosted(self, stage: Stage, placement: Placement) -> list[Stage]:
        """Return the stages of one kind that are computed inside the kernel of `stage`."""
        return [s for s in self.program.sketch.placed(placement) if s.host == stage.node]

    def _keep_in_registers(self, stage: Stage, block: Any) -> list[Any]:
        """Reduce in registers; return the blocks that copy the results out."""
        if stage.epilogue is not None:
            self.schedule.set_scope(block, 0, "local")
            return [self.schedule.get_sblock(stage.epilogue)]
        writes = range(len(self.schedule.get(block).writes))
        return [self.schedule.cache_write(block, index, "local") for index in writes]

    def _bind(self, fused: Any, stage: Stage) -> Any:
        """Split a loop into blocks, threads and a vector if the program has one; return the threads' loop.

            for n: C[n] = ...
        ->
            for blockIdx.x, threadIdx.x: for v in T.vectorized(lanes): C[n] = ...
        """
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

    def _bind_across(self, loops: Sequence[Any], host: str) -> None:
        """Spread fused loops over the threads of a row: for k -> for k0: for threadIdx.x."""
        threads = int(self.program.choice(host, "threads"))
        _, inner = self.schedule.split(self.schedule.fuse(*loops), [None, threads])
        self.schedule.bind(inner, "threadIdx.x")

    def _reduce_at(self, stage: Stage, row: Any) -> None:
        """Compute a reduction of the chain inside the loop over rows, across the row's threads.

            for i, k: s[i] += E[i, k]
        ->
            for row: for k0, threadIdx.x: s += E[i, k]
        """
        block = self._compute_at(stage, row)
        axes = self.schedule.get(block).iter_vars
        own = list(zip(self.schedule.get_loops(block)[-len(axes) :], axes, strict=True))
        summed = [loop for loop, axis in own if axis.iter_type == IterVar.CommReduce]
        beside = [loop for loop, axis in own if axis.iter_type != IterVar.CommReduce]
        self.schedule.reorder(*beside, *summed)
        assert stage.host is not None
        self._bind_across(summed, stage.host)

    def _compute_at(self, stage: Stage, loop: Any) -> Any:
        """Compute a stage inside a loop, with its results in registers.

        TVM broadcasts the result of a reduction across threads to all of them. (For results in shared memory
        it would leave out barriers between rows.)
        """
        block = self.schedule.get_sblock(stage.node)
        self.schedule.compute_at(block, loop, preserve_unit_loops=True)
        for index in range(len(self.schedule.get(block).writes)):
            self.schedule.set_scope(block, index, "local")
        return block
