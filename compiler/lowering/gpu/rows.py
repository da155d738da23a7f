"""Lower chains over rows (softmax, layer norm) for GPUs. The threads of a block reduce a row together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm.tirx import IterVar

from compiler.lowering.gpu.kernels import ComputeAtLowering
from compiler.lowering.stage import Lowering, StageLowering
from search.sketches.row_registers import row_registers
from search.sketches.stage import Stage


class RowKernelLowering(StageLowering):
    """A kernel whose blocks compute a few rows each. `tile` sets the loop over a block's rows."""

    _row: Any

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        self._copies: list[Any] = []
        self._kept = row_registers(self.program.sketch, stage) if stage.in_registers else None

    def fetch(self) -> None:
        """Copy rows to registers in nests that `annotate` moves into the kernel.

            for i, k: s[i] += X[i, k]
            for i, j: B[i, j] = X[i, j] / s[i]
        ->
            for i, k: X_local[i, k] = X[i, k]
            for i, k: s[i] += X_local[i, k]
            for i, j: B[i, j] = X_local[i, j] / s[i]
        """
        if self._kept is None:
            return
        for buffer, names in self._kept.operands.items():
            readers = [self.schedule.get_sblock(name) for name in names]
            sources = [read.source for read in self.schedule.get(readers[0]).reads]
            index = next(i for i, source in enumerate(sources) if source.same_as(self.buffers[buffer]))
            self._copies.append(self.schedule.cache_read(readers[0], index, "local", consumer_blocks=readers))

    def tile(self) -> None:
        """Compute the last node of a chain over rows. The threads of a block share each row.

            for i, k: B[i, k] = exp(A[i, k] - m[i]) / s[i]
        ->
            for blockIdx.x, threadIdx.y:                                 # i
                for k0, threadIdx.x: B[i, k] = exp(A[i, k] - m[i]) / s[i]
        """
        node, block = self.node, self.schedule.get_sblock(self.node.name)
        loops = self.schedule.get_loops(block)
        rows = [loops[axis] for axis in self.stage.rows]
        beside = [loops[axis] for axis in node.spatial if axis not in self.stage.rows]
        summed = [loops[axis] for axis in node.reduction]
        rows = rows or [self.schedule.add_unit_loop(loops[0] if loops else block)]
        if not beside and not summed:
            # If the row has one element, the first thread stores it.
            beside = [self.schedule.add_unit_loop(block)]
        self.schedule.reorder(*rows, *beside, *summed)
        self._row = self.schedule.fuse(*rows)
        count = self.choice("rows")
        if count == 1:
            self.schedule.bind(self._row, "blockIdx.x")
        else:
            outer, self._row = self.schedule.split(self._row, [None, count])
            self.schedule.bind(outer, "blockIdx.x")
            self.schedule.bind(self._row, "threadIdx.y")
        self.bind_along(summed or beside, vectorize=not summed)

    def annotate(self) -> None:
        """Compute the copies inside the loop over rows. Each thread copies its elements.

            for i, k: X_local[i, k] = X[i, k]
        ->
            for blockIdx.x, threadIdx.y:                                 # i
                for k0, threadIdx.x: for v in T.vectorized(lanes): X_local[i, k0, v] = X[i, k]
        """
        for copy in self._copies:
            self.schedule.compute_at(copy, self._row, preserve_unit_loops=True)
            self.keep(copy)

    def keep(self, block: Any) -> None:
        """Distribute a block over the threads of a row, with its results in their registers."""
        axes = self.schedule.get(block).iter_vars
        self.bind_along(self.schedule.get_loops(block)[-len(axes) :], vectorize=True)
        # Each thread has its own buffer, so elements of different threads may have the same index.
        layout = self._layout(block)
        self.schedule.transform_layout(block, ("write", 0), layout, assume_injective_transform=True)

    def bind_along(self, loops: Sequence[Any], vectorize: bool) -> None:
        """Fuse loops, and distribute them over the threads of a row.

            for k
        ->
            for k0: for threadIdx.x                                      # rows in memory
            for k0: for threadIdx.x: for v in T.vectorized(lanes)        # rows in registers

        If the loops reduce, `vectorize` is false and the loop over the vector is unrolled.
        """
        fused, threads = self.schedule.fuse(*loops), self.choice("threads")
        if self._kept is None or int(self.schedule.get(fused).extent) != self._kept.length:
            _, thread = self.schedule.split(fused, [None, threads])
            self.schedule.bind(thread, "threadIdx.x")
            return
        step, thread, lane = self.schedule.split(fused, [None, threads, self.choice("lanes")])
        self.schedule.bind(thread, "threadIdx.x")
        # Registers have no addresses: every index must be a constant.
        self.schedule.unroll(step)
        (self.schedule.vectorize if vectorize else self.schedule.unroll)(lane)

    def loop_around(self, inner: Stage) -> Any:
        return self._row

    def _layout(self, block: Any) -> Callable[..., list[Any]]:
        """Return the index map from a row's elements to a thread's registers: k -> k0, v."""
        assert self._kept is not None
        shape = [int(extent) for extent in self.schedule.get(block).writes[0].source.ty.shape]
        outer = next(n for n in reversed(range(len(shape))) if math.prod(shape[n:]) == self._kept.length)
        lanes, together = self.choice("lanes"), self.choice("threads") * self.choice("lanes")

        def split(*indices: Any) -> list[Any]:
            element: Any = indices[outer]
            for index, extent in zip(indices[outer + 1 :], shape[outer + 1 :], strict=True):
                element = element * extent + index
            return [*indices[:outer], element // together, element % lanes]

        return split


class BlockReductionLowering(ComputeAtLowering):
    """A reduction in a chain over rows (softmax, layer norm), inside the kernel of the chain's last node."""

    def place(self) -> None:
        """Compute the reduction inside the loop over rows, across the row's threads.

            for i, k: s[i] += E[i, k]
            for blockIdx.x, threadIdx.y:                                 # i
                for k0, threadIdx.x: B[i, k] = E[i, k] / s[i]
        ->
            for blockIdx.x, threadIdx.y:
                for k0, threadIdx.x: s += E[i, k]
                for k0, threadIdx.x: B[i, k] = E[i, k] / s
        """
        block = self._compute_at_consumer()
        axes = self.schedule.get(block).iter_vars
        own = list(zip(self.schedule.get_loops(block)[-len(axes) :], axes, strict=True))
        summed = [loop for loop, axis in own if axis.iter_type == IterVar.CommReduce]
        beside = [loop for loop, axis in own if axis.iter_type != IterVar.CommReduce]
        self.schedule.reorder(*beside, *summed)
        row_kernel(self).bind_along(summed, vectorize=False)


class KeptInRegistersLowering(ComputeAtLowering):
    """An elementwise node that several nodes of a chain over rows read."""

    def place(self) -> None:
        """Compute the node once inside the loop over rows, with results in the threads' registers.

            for i, k: E[i, k] = exp(A[i, k])
            for blockIdx.x, threadIdx.y:                                 # i
                for k0, threadIdx.x: for v: s += E[i, k]
                for k0, threadIdx.x: for v: B[i, k] = E[i, k] / s
        ->
            for blockIdx.x, threadIdx.y:
                for k0, threadIdx.x: for v: E_local[i, k0, v] = exp(A[i, k])
                for k0, threadIdx.x: for v: s += E_local[i, k0, v]
                for k0, threadIdx.x: for v: B[i, k] = E_local[i, k0, v] / s
        """
        row_kernel(self).keep(self._compute_at_consumer())


def row_kernel(inner: ComputeAtLowering) -> RowKernelLowering:
    """Return the lowering of the kernel that a node is computed in."""
    assert inner.stage.compute_at is not None
    kernel = inner.stages[inner.stage.compute_at]
    assert isinstance(kernel, RowKernelLowering)
    return kernel
