"""Attention's chain of scores, softmax and weighted values, computed a block of queries at a time.

    s[b, q, k] = sum(query[b, q, d] * key[b, d, k])
    p[b, q, k] = softmax(s[b, q, k])
    v[b, q, e] = sum(p[b, q, k] * value[b, k, e])

All scores of 6 heads with 1500 queries and keys take 54 MB. The scores of a block of queries stay in a core's
L2 cache.
"""

from __future__ import annotations

from search.dag import Dag, Node, extent_of
from search.sketches.attention import common_rows
from search.sketches.factors import divisors
from search.sketches.location import aligned_axes
from search.sketches.predicates import is_strictly_inlineable, needs_tiling, reduces_rows
from search.sketches.row_blocks import RowBlocks
from search.sketches.stage import Rfactor, StageKind
from search.sketches.variables import rfactor_lanes

# A register tile has about this many queries.
MIN_QUERIES = 8


def attention_blocks(dag: Dag, output: Node, l2_bytes: int) -> RowBlocks | None:
    """Return the chain that ends at an output; None without one.

    The output is a permutation of weighted values. It and all nodes before it have the same queries.
    """
    before = [node for node in dag.nodes if node is not output]
    products = [node for node in before if needs_tiling(node)]
    if (
        output.reduction
        or output.extra_writes
        or len(products) != 2
        or dag.consumers(products[1]) != (output,)
    ):
        return None
    kinds = {node.name: _kind(dag, node) for node in before}
    sums = [node for node in before if kinds[node.name] is StageKind.NEST and node.reduction]
    if not sums or not all(reduces_rows(node) and rfactor_lanes(node, Rfactor.INNER) for node in sums):
        return None
    looped = [node for node in before if kinds[node.name] is not StageKind.INLINE]
    order = common_rows(dag, output, looped)
    if not order:
        return None
    rows = {output.name: order}
    for node in looped:
        own = {theirs: axis for axis, theirs in aligned_axes(dag, output, node).items()}
        rows[node.name] = tuple(own[axis] for axis in order)
    scores = dag.buffer[products[0].write.buffer]
    query_bytes = scores.num_bytes // extent_of(output, order)
    cuts = _cuts(output.axes[order[-1]].extent, query_bytes, l2_bytes)
    return RowBlocks(kinds, rows, {}, tuple((count, 1) for count in cuts), is_best=True)


def _kind(dag: Dag, node: Node) -> StageKind:
    if needs_tiling(node):
        return StageKind.TILED
    # A product would repeat the division of the softmax for each of its results.
    feeds_product = any(map(needs_tiling, dag.consumers(node)))
    return StageKind.INLINE if is_strictly_inlineable(node) and not feeds_product else StageKind.NEST


def _cuts(queries: int, query_bytes: int, l2_bytes: int) -> list[int]:
    """Return numbers of blocks: the largest blocks whose scores fill at most half of the L2 cache, and
    smaller ones down to a quarter of them.

    If no block is small enough, return the smallest blocks that fill register tiles.
    """
    counts = [count for count in divisors(queries) if queries // count >= MIN_QUERIES] or [1]
    small = [count for count in counts if queries // count * query_bytes <= l2_bytes // 2]
    if not small:
        return counts[-1:]
    return [count for count in small if count <= 4 * small[0]]
