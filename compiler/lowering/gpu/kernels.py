"""Lower the untiled nodes of GPU programs that compute each result with one thread."""

from __future__ import annotations

from typing import Any

from compiler.lowering.primitives import unroll_up_to
from compiler.lowering.stage import StageLowering
from search.sketches.stage import Stage


class ThreadKernelLowering(StageLowering):
    """A kernel whose threads compute a few results each. `tile` sets the block, its loop over threads, and
    its reduction loops.
    """

    _block: Any
    _thread: Any
    _reduced: list[Any]

    def tile(self) -> None:
        """Distribute the results of a node over threads. Each thread reduces in registers and stores once;
        loops over constant matrices are unrolled.

            for i, j, k: C[i, j] += A[i, j, k]
        ->
            for blockIdx.x, threadIdx.x:
                c = 0
                for k: c += A[i, j, k]
                C[i, j] = c
        """
        node, block = self.node, self.schedule.get_sblock(self.node.name)
        self._block = block
        loops = self.schedule.get_loops(block)
        copies_out = self._keep_in_registers(block) if node.reduction else []
        spread = [loops[axis] for axis in node.looped_spatial]
        constant = [loops[axis] for axis in node.constant_axes]
        summed = [loops[axis] for axis in node.reduction if axis not in node.constant_axes]
        spread = spread or [self.schedule.add_unit_loop(loops[0] if loops else block)]
        self.schedule.reorder(*spread, *summed, *constant)
        self._thread = self._bind(self.schedule.fuse(*spread))
        self._reduced = [*summed, *constant]
        for loop in constant:
            self.schedule.unroll(loop)
        for copy_out in copies_out:
            self.schedule.reverse_compute_at(copy_out, self._thread, preserve_unit_loops=True)

    def decompose(self) -> None:
        if self.node.reduction:
            unroll_up_to(self.schedule, self._thread, self.choice("unroll"))
            self.schedule.decompose_reduction(self._block, self._reduced[0])

    def loop_around(self, inner: Stage) -> Any:
        return self._thread

    def _keep_in_registers(self, block: Any) -> list[Any]:
        """Reduce in registers; return the blocks that copy the results to memory."""
        if self.stage.epilogue is not None:
            self.schedule.set_scope(block, 0, "local")
            return [self.schedule.get_sblock(self.stage.epilogue)]
        writes = range(len(self.schedule.get(block).writes))
        return [self.schedule.cache_write(block, index, "local") for index in writes]

    def _bind(self, fused: Any) -> Any:
        """Split a loop into blocks, threads and, if the program has one, a vector. Return the loop over
        threads.

            for n: C[n] = ...
        ->
            for blockIdx.x, threadIdx.x: for v in T.vectorized(lanes): C[n] = ...
        """
        lanes = self.choice("lanes") if self.program.sketch.choice(self.node.name, "lanes") else 1
        # With a single result, surplus threads would store values that they never computed.
        extent = int(self.schedule.get(fused).extent) // lanes
        threads = min(self.choice("threads"), extent)
        if lanes > 1:
            fused, vector = self.schedule.split(fused, [None, lanes])
            self.schedule.vectorize(vector)
        grid, thread = self.schedule.split(fused, [None, threads])
        self.schedule.bind(grid, "blockIdx.x")
        self.schedule.bind(thread, "threadIdx.x")
        return thread


class ComputeAtLowering(StageLowering):
    """A node computed inside the kernel of its consumer."""

    def _compute_at_consumer(self) -> Any:
        """Compute the node inside a loop of its consumer, with results in registers. Return its block.

        TVM broadcasts the result of a reduction across threads to all of them. (If results were in shared
        memory, it would omit barriers between rows.)
        """
        assert self.stage.compute_at is not None
        block = self.schedule.get_sblock(self.node.name)
        loop = self.stages[self.stage.compute_at].loop_around(self.stage)
        self.schedule.compute_at(block, loop, preserve_unit_loops=True)
        for index in range(len(self.schedule.get(block).writes)):
            self.schedule.set_scope(block, index, "local")
        return block


class ThreadLocalLowering(ComputeAtLowering):
    """A node that each thread of its consumer computes again."""

    def place(self) -> None:
        """Compute the node inside the loop over threads.

            for p, r: t[p, r] = d[2 * p + r]
            for blockIdx.x, threadIdx.x:                                 # p
                for x, r: v[x, p] += t[p, r] * B[r, x]
        ->
            for blockIdx.x, threadIdx.x:
                for r: t_local[r] = d[2 * p + r]
                for x, r: v[x, p] += t_local[r] * B[r, x]
        """
        self._compute_at_consumer()
