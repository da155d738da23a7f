"""Lower an attention to one GPU kernel, whose scores never leave a block's shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.tirx import IterVar

from compiler.lowering.gpu.fragments import SHARED
from compiler.lowering.primitives import unroll_up_to
from compiler.lowering.stage import Lowering, StageLowering
from search.dag import Node
from search.sketches.attention import attention_of
from search.sketches.location import aligned_axes
from search.sketches.stage import Stage

# The lengths of vectors that a thread loads.
VECTORS = (2, 4)


class AttentionLowering(StageLowering):
    """The kernel of a whole attention: the stage of its output. `tile` sets the loop over blocks, and the
    outermost reduction loops of both products.
    """

    _block: Any

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        found = attention_of(self.program.sketch.dag, self.node)
        assert found is not None, "the stage computes an attention"
        self._attention = found
        self._reduced: list[tuple[Any, Any]] = []

    def tile(self) -> None:
        """Compute all nodes in one loop over images and blocks of queries.

            for b, q, k, d: S[b, q, k] += Q[b, q, d] * K[b, d, k]
            for b, q, k: M[b, q] = max(M[b, q], S[b, q, k])
            for b, q, k: L[b, q] += exp(S[b, q, k] - M[b, q])
            for b, q, k: P[b, q, k] = exp(S[b, q, k] - M[b, q]) / L[b, q]
            for b, q, e, k: V[b, q, e] += P[b, q, k] * W[b, k, e]
            for q, b, e: Y[q, b, e] = V[b, q, e]
        ->
            for blockIdx.x:                                              # b, q0
                for k0, threadIdx.y, threadIdx.x:
                    for d: for q in T.unroll: for k1 in T.vectorized: S_local += Q[b, q, d] * K[b, d, k]
                    for q: for k1 in T.vectorized: S_shared[q, k] = S_local[q, k]
                for threadIdx.y, q:
                    for k0, threadIdx.x: M_local = max(M_local, S_shared[q, k])
                    for k0, threadIdx.x: L_local += exp(S_shared[q, k] - M_local)
                    for k0, threadIdx.x: P_shared[q, k] = exp(S_shared[q, k] - M_local) / L_local
                for threadIdx.y, threadIdx.x:
                    for k: for q in T.unroll: for e1 in T.vectorized: V_local += P_shared[q, k] * W[b, k, e]
                    for q: for e1 in T.vectorized: Y[q, b, e] = V_local[q, e]
        """
        self._tile_values()
        self._tile_softmax()
        self._tile_scores()

    def decompose(self) -> None:
        for block, loop in self._reduced:
            self.schedule.decompose_reduction(block, loop)

    def _tile_values(self) -> None:
        found, schedule = self._attention, self.schedule
        loops = schedule.get_loops(schedule.get_sblock(self.node.name))
        outer, warp, query = self._split_queries(loops[found.queries])
        images = [loops[axis] for axis in found.images]
        rows = (*found.images, found.queries)
        beside = [loops[axis] for axis in self.node.spatial if axis not in rows]
        schedule.reorder(*images, outer, warp, query, *beside)
        fused = schedule.fuse(*beside)
        width = self.primitives.extent(fused)
        channels = -(-width // self._lanes)
        # All loops over the threads of a warp have the same extent.
        thread, channel = schedule.split(fused, [self._lanes, channels])
        schedule.reorder(thread, query, channel)
        schedule.bind(thread, "threadIdx.x")
        is_vector = channels in VECTORS and width % channels == 0
        if is_vector:
            schedule.vectorize(channel)
        self._block = schedule.fuse(*images, outer)
        schedule.bind(self._block, "blockIdx.x")
        schedule.bind(warp, "threadIdx.y")
        self._sum_in_registers(found.values, thread, is_vector)

    def _tile_softmax(self) -> None:
        found, schedule = self._attention, self.schedule
        weights = schedule.get_sblock(found.weights.name)
        schedule.set_scope(weights, 0, SHARED)
        _, query, keys = self._rows_of_scores(weights, found.weights)
        self._split_lanes(keys)
        for node in reversed(found.sums):
            block = schedule.get_sblock(node.name)
            summed = self._inside(block, query)[-len(node.reduction) :]
            schedule.set_scope(block, 0, "local")
            self._split_lanes(schedule.fuse(*summed))

    def _tile_scores(self) -> None:
        found, schedule = self._attention, self.schedule
        scores = schedule.get_sblock(found.scores.name)
        if found.stored is found.scores:
            stored = schedule.cache_write(scores, 0, "local")
        else:
            schedule.set_scope(scores, 0, "local")
            stored = schedule.get_sblock(found.stored.name)
        schedule.set_scope(stored, 0, SHARED)
        warp, query, keys = self._rows_of_scores(stored, found.stored)
        # A thread's keys are adjacent: otherwise TVM would also compute the scores between them.
        step, thread, key = schedule.split(keys, [None, self._lanes, self.choice("keys")])
        schedule.reorder(step, warp, thread, query, key)
        schedule.bind(thread, "threadIdx.x")
        is_vector = self.choice("keys") > 1
        if is_vector:
            schedule.vectorize(key)
        self._sum_in_registers(found.scores, thread, is_vector)

    def _sum_in_registers(self, node: Node, thread: Any, is_vector: bool) -> None:
        """Compute a product inside the loop over threads. Its reduction surrounds the thread's results, whose
        last axis may be a vector.
        """
        schedule = self.schedule
        block = schedule.get_sblock(node.name)
        loops = self._inside(block, thread)
        schedule.set_scope(block, 0, "local")
        kinds = [axis.iter_type == IterVar.CommReduce for axis in schedule.get(block).iter_vars]
        summed = [loop for loop, is_sum in zip(loops, kinds, strict=True) if is_sum]
        results = [loop for loop, is_sum in zip(loops, kinds, strict=True) if not is_sum]
        schedule.reorder(*summed, *results)
        *others, last = results
        for loop in others:
            schedule.unroll(loop)
        (schedule.vectorize if is_vector else schedule.unroll)(last)
        # Around the softmax, TVM would lose the buffers of unrolled reductions across threads.
        unroll_up_to(schedule, summed[0], self.choice("unroll"))
        self._reduced.append((block, summed[0]))

    def _inside(self, block: Any, loop: Any) -> list[Any]:
        """Compute a block inside a loop; return its own loops."""
        self.schedule.compute_at(block, loop, preserve_unit_loops=True)
        return list(self.schedule.get_loops(block)[-len(self.schedule.get(block).iter_vars) :])

    def _rows_of_scores(self, block: Any, node: Node) -> tuple[Any, Any, Any]:
        """Compute rows of scores inside the loop over blocks. Return their loops over warps, the queries of a
        warp, and keys.
        """
        loops = self._inside(block, self._block)
        position = self._queries_of(node)
        outer, warp, query = self._split_queries(loops.pop(position))
        self.schedule.reorder(outer, warp, query, *loops)
        self.schedule.bind(warp, "threadIdx.y")
        return warp, query, self.schedule.fuse(*loops)

    def _queries_of(self, node: Node) -> int:
        """Return the axis of a node that moves with the output's queries."""
        aligned = aligned_axes(self.program.sketch.dag, self.node, node)
        return next(axis for axis, theirs in aligned.items() if theirs == self._attention.queries)

    def _split_queries(self, loop: Any) -> Sequence[Any]:
        """Split a loop over queries into blocks, warps and the queries of a warp."""
        return list(self.schedule.split(loop, [None, self.choice("warps"), self.choice("queries")]))

    def _split_lanes(self, loop: Any) -> tuple[Any, Any]:
        """Distribute a loop over the threads of a warp."""
        outer, thread = self.schedule.split(loop, [None, self._lanes])
        self.schedule.bind(thread, "threadIdx.x")
        return outer, thread

    @property
    def _lanes(self) -> int:
        assert self.device.gpu is not None
        return self.device.gpu.warp_size
