"""Lower an attention to one GPU kernel whose tensor cores compute the scores and the weighted values."""

from __future__ import annotations

from typing import Any

from compiler.lowering.gpu.fragments import SHARED, FragmentLowering, instructions
from compiler.lowering.gpu.pipeline import pipeline
from compiler.lowering.primitives import unroll_up_to
from compiler.lowering.stage import Lowering
from search.sketches.attention import attention_with_products
from search.sketches.stage import Stage
from search.sketches.tensor_core import BANKS, SIDE, WIDE_SKEW
from search.sketches.variables import fetch_kind


class TensorAttentionLowering(FragmentLowering):
    """The kernel of a whole attention on tensor cores: the stage of its output. `tile` sets the loop over
    blocks.
    """

    _block: Any

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        self._attention, self._of_scores, self._of_values = attention_with_products(
            self.program.sketch.dag, self.node, self.device.gpu
        )
        self._warps = [self.choice(f"warps {part}") for part in "ij"]
        self._rows = self._warps[0] * self.choice("fragments i")

    def fetch(self) -> None:
        self.as_product(self._attention.scores, self._of_scores)
        self.as_product(self._attention.values, self._of_values)

    def tile(self) -> None:
        """Compute all nodes in one loop over images and blocks of queries. Scores are padded to whole tiles.

            for s, q, k, d: S[s, q, k] += Q[s, q, d] * K[s, d, k]
            for s, q, k: M[s, q] = max(M[s, q], S[s, q, k])
            for s, q, k: L[s, q] += exp(S[s, q, k] - M[s, q])
            for s, q, k: P[s, q, k] = exp(S[s, q, k] - M[s, q]) / L[s, q]
            for s, q, e, k: V[s, q, e] += P[s, q, k] * W[s, k, e]
            for q, s, e: Y[q, s, e] = V[s, q, e]
        ->
            for blockIdx.x:                                              # s, q0
                for threadIdx.y, threadIdx.x: Q_shared[q, d] = Q[s, q, d]
                for k0:
                    for threadIdx.y, threadIdx.x: K_shared[d, k] = K[s, d, k]
                    for threadIdx.y:                                     # q1, k1
                        for d: wmma_load(Q, K); for q2, k2: wmma_sync(S_fragment, Q, K)
                        wmma_store(S_shared, S_fragment)
                for threadIdx.y, q1:
                    for k0, threadIdx.x: M_local = max(M_local, S_shared[q, k])
                    for k0, threadIdx.x: L_local += exp(S_shared[q, k] - M_local)
                    for k0, threadIdx.x: P_shared[q, k] = exp(S_shared[q, k] - M_local) / L_local
                for threadIdx.y:                                         # q1, e1
                    for k0:
                        for threadIdx.y, threadIdx.x: W_shared[k, e] = W[s, k, e]
                        for k1: wmma_load(P, W); for q2, e2: wmma_sync(V_fragment, P, W)
                    wmma_store(V_shared, V_fragment)
                    for threadIdx.x: Y[q, s, e] = V_shared[q, e]
        """
        schedule, found = self.schedule, self._attention
        scores, values = (schedule.get_sblock(node.name) for node in (found.scores, found.values))
        rows, columns = SIDE * self._rows, SIDE * self._warps[1]
        of_scores = self.blockize(
            scores,
            self._of_scores,
            [1, rows, columns * self.choice("fragments j"), self._of_scores.depth],
        )
        of_values = self.blockize(
            values, self._of_values, [1, rows, columns, self._of_values.depth * self.choice("fragments k")]
        )
        outer, loops = of_values
        warp, k0, k1 = self._bind_values(loops)
        weights = schedule.cache_read(outer, self._of_values.first, SHARED)
        self._tile_softmax(weights)
        self._tile_scores(scores, of_scores[0])
        self._tile_values(values, outer, warp, k0, k1)

    def _bind_values(self, loops: list[Any]) -> tuple[Any, Any, Any]:
        """Split and bind the loops over fragments of the weighted values, and return the loops threadIdx.y,
        k0 and k1.
        """
        schedule = self.schedule
        image, i, j, k = loops
        across, counts = self._warps, [self.choice("fragments i"), self.choice("fragments k")]
        i0, i1, i2 = schedule.split(i, [None, across[0], counts[0]])
        j1, j2 = schedule.split(j, [across[1], None])
        k0, k1 = schedule.split(k, [None, counts[1]])
        schedule.reorder(i0, i1, j1, k0, k1, i2, j2)
        self._block, warp = schedule.fuse(image, i0), schedule.fuse(i1, j1)
        schedule.bind(self._block, "blockIdx.x")
        schedule.bind(warp, "threadIdx.y")
        return warp, k0, k1

    def _tile_softmax(self, weights: Any) -> None:
        """Compute the weights, and all that is computed from scores, in the loop over blocks."""
        schedule = self.schedule
        self.inline_producers(weights)
        schedule.compute_at(weights, self._block, preserve_unit_loops=True)
        schedule.storage_align(weights, 0, -2, BANKS, self._of_values.skews[0])
        row, keys = schedule.get_loops(weights)[-2:]
        row, warp = schedule.split(row, [None, self._warps[0] * self._warps[1]])
        schedule.reorder(warp, row)
        schedule.bind(warp, "threadIdx.y")
        self._split_lanes(keys)
        for node in reversed(self._attention.sums):
            block = schedule.get_sblock(node.name)
            schedule.compute_at(block, row, preserve_unit_loops=True)
            schedule.set_scope(block, 0, "local")
            summed = schedule.get_loops(block)[-len(node.reduction) :]
            self._split_lanes(schedule.fuse(*summed))

    def _tile_scores(self, inner: Any, outer: Any) -> None:
        schedule, found = self.schedule, self._of_scores
        schedule.set_scope(outer, 0, SHARED)
        store = schedule.cache_write(outer, 0, "wmma.accumulator")
        i, j = schedule.get_loops(store)[-2:]
        (i, ii), (j, jj) = (schedule.split(loop, [None, SIDE]) for loop in (i, j))
        schedule.reorder(i, j, ii, jj)
        # Instructions store whole tiles, also where the softmax reads a part.
        tiles = schedule.blockize(ii)
        schedule.compute_at(tiles, self._block, preserve_unit_loops=True)
        i, j = schedule.get_loops(tiles)[-2:]
        i1, i2 = schedule.split(i, [self._warps[0], None])
        j0, j1, j2 = schedule.split(j, [None, self._warps[1], self.choice("fragments j")])
        schedule.reorder(j0, i1, j1, i2, j2)
        warp = schedule.fuse(i1, j1)
        schedule.bind(warp, "threadIdx.y")
        schedule.tensorize(schedule.get_loops(store)[-2], instructions(found)["store"])
        (stored,) = schedule.get_child_blocks(j2)
        schedule.storage_align(stored, 0, -2, BANKS, WIDE_SKEW)
        schedule.compute_at(outer, warp, preserve_unit_loops=True)
        i2, j2, k = schedule.get_loops(outer)[-3:]
        schedule.reorder(k, i2, j2)
        fetches = [schedule.cache_read(outer, index, SHARED) for index in (found.first, found.second)]
        operands = [self._attention.scores.reads[index].buffer for index in (found.first, found.second)]
        for fetch, operand, loop, skew in zip(fetches, operands, (self._block, j0), found.skews, strict=True):
            self._fetch(fetch, operand, loop, skew)
        self.load_fragments(self.read_fragments(outer, found), k, found)
        # Around the softmax, TVM would lose the buffers of unrolled reductions across threads.
        unroll_up_to(schedule, k, self.choice("unroll"))
        self.multiply(inner, outer, k, found)
        # TVM lifts the loop over warps out of this one, and leaves its two children.
        pipeline(self, j0, operands[1:], self.choice("stages"), steps=2)

    def _tile_values(self, inner: Any, outer: Any, warp: Any, k0: Any, k1: Any) -> None:
        schedule, found = self.schedule, self._of_values
        operand = self._attention.values.reads[found.second].buffer
        self._fetch(schedule.cache_read(outer, found.second, SHARED), operand, k0, found.skews[1])
        fragments = self.read_fragments(outer, found)
        copy = schedule.cache_write(outer, 0, SHARED)
        store = schedule.cache_write(outer, 0, "wmma.accumulator")
        self.load_fragments(fragments, k1, found)
        for block in (store, copy):
            schedule.reverse_compute_at(block, warp, preserve_unit_loops=True)
        stored = self.replace_copy(store, (SIDE, SIDE), instructions(found)["store"])
        schedule.storage_align(stored, 0, -2, BANKS, WIDE_SKEW)
        unroll_up_to(schedule, k1, self.choice("unroll"))
        self.multiply(inner, outer, k0, found)
        pipeline(self, k0, [operand], self.choice("stages"))
        self.copy_out(copy, self.node.write.buffer, 4)

    def _fetch(self, fetch: Any, operand: str, loop: Any, skew: int) -> None:
        warps = self._warps[0] * self._warps[1]
        self.fetch_operand(fetch, loop, skew, warps, self.choice(fetch_kind(operand)))
        self.inline_producers(fetch)

    def _split_lanes(self, loop: Any) -> None:
        """Distribute a loop over the threads of a warp."""
        assert self.device.gpu is not None
        _, thread = self.schedule.split(loop, [None, self.device.gpu.warp_size])
        self.schedule.bind(thread, "threadIdx.x")
