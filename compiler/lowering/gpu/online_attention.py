"""Lower an attention to the form from which code generation writes a kernel with an online softmax."""

from __future__ import annotations

from compiler.lowering.gpu.fragments import SHARED, FragmentLowering
from compiler.lowering.stage import Lowering
from core.trace import ONLINE_ATTENTION
from search.sketches.attention import attention_with_products
from search.sketches.stage import Stage
from search.sketches.variables import fetch_kind


class OnlineAttentionLowering(FragmentLowering):
    """The kernel of a whole attention with an online softmax: the stage of its output."""

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        self._attention, self._of_scores, self._of_values = attention_with_products(
            self.program.sketch.dag, self.node, self.device.gpu, is_grouped=True
        )

    def fetch(self) -> None:
        self.as_product(self._attention.scores, self._of_scores)
        self.as_product(self._attention.values, self._of_values)

    def tile(self) -> None:
        """Give all nodes the axes images, queries and keys or columns, and mark the result with the sizes of
        the kernel (compiler.codegen.online_attention).

            for b, h, q, k: X[b, h, q, k] = S[b, h, q, k] * scale + mask[b, k]
            for b, h, q, k: P[b, h, q, k] = exp(X[b, h, q, k] - M[b, h, q]) / L[b, h, q]
            for b, q, h, e: Y[b, q, h, e] = V[b, h, q, e]
        ->
            for s, q, k: P_shared[s, q, k] = exp(S[s, q, k] * scale + mask[s // H, k] - M[...]) / L[...]
            for s, q, e: Y[s // H, q, s % H, e] = V_local[s, q, e]
        """
        schedule, found = self.schedule, self._attention
        scores, values = (schedule.get_sblock(node.name) for node in (found.scores, found.values))
        copies = [
            schedule.cache_read(block, index, SHARED)
            for block, product in ((scores, self._of_scores), (values, self._of_values))
            for index in (product.first, product.second)
        ]
        result = schedule.cache_write(values, 0, "local")
        sums = [schedule.get_sblock(node.name) for node in found.sums]
        for block in (*copies, *sums):
            self.inline_producers(block)
        self.inline_consumers(result, self.node.write.buffer)
        operands = [
            found.scores.reads[index].buffer for index in (self._of_scores.first, self._of_scores.second)
        ]
        operands.append(found.values.reads[self._of_values.second].buffer)
        kinds = ["warps", "fragments i", "fragments j", "stages", *map(fetch_kind, operands), "parts"]
        schedule.annotate(result, ONLINE_ATTENTION, [self.choice(kind) for kind in kinds])
