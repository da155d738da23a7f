"""Find attention in a subgraph: scores, softmax, weighted values and the permutation of their heads.

s[b, q, k] = sum(query[b, q, d] * key[b, d, k])
p[b, q, k] = softmax(s[b, q, k])
v[b, q, e] = sum(p[b, q, k] * value[b, k, e])
y[q, b, e] = v[b, q, e]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.device import Gpu
from core.job import TF32
from core.profile import FLOAT32
from search.dag import Dag, Node
from search.sketches.location import aligned_axes
from search.sketches.predicates import elementwise_consumer, needs_tiling
from search.sketches.tensor_core import MatrixProduct, axes_of, is_on_tensor_cores, matrix_product


@dataclass(frozen=True)
class Attention:
    """The nodes of an attention, and the output's axes that number its rows of scores: `images` and
    `queries`.

    The softmax reads the results of `stored`: the scores, or the node that scales and masks them. `sums` are
    its two reductions, `weights` its results.
    """

    scores: Node
    stored: Node
    sums: tuple[Node, ...]
    weights: Node
    values: Node
    output: Node
    images: tuple[int, ...]
    queries: int

    @property
    def members(self) -> tuple[Node, ...]:
        """The nodes with loops, without the output. The others are inlined."""
        return (self.scores, self.stored, *self.sums, self.weights, self.values)


def attention_of(dag: Dag, output: Node) -> Attention | None:
    """Return the attention that ends at an output; None without one."""
    before = [node for node in dag.nodes if node is not output]
    products = [node for node in before if needs_tiling(node)]
    if output.reduction or output.extra_writes or len(products) != 2:
        return None
    scores, values = products
    sums = tuple(node for node in before if node.reduction and node not in products)
    if len(sums) != 2 or not _ends_in(dag, values, output) or any(node.extra_writes for node in sums):
        return None
    stored = _producers(dag, sums[0])
    total = sums[1].write.buffer
    weights = [node for node in _producers(dag, values) if total in _computed_from(dag, node)]
    if len(stored) != 1 or len(weights) != 1 or weights[0].reduction:
        return None
    if stored[0] is not scores:
        inlined = {node.name for node in before if not node.reduction} - {stored[0].name}
        if elementwise_consumer(dag, scores, inlined) is not stored[0]:
            return None
    members = (scores, stored[0], *sums, weights[0], values)
    rows = common_rows(dag, output, members)
    if not rows:
        return None
    return Attention(scores, stored[0], sums, weights[0], values, output, rows[:-1], rows[-1])


def is_softmax(dag: Dag, found: Attention) -> bool:
    """Return whether the weights are computed from the maximum of the scores and from a sum. A softmax does
    so. (Code generation compares the expressions.)
    """
    largest, total = found.sums
    return (
        (largest.reducer, total.reducer) == ("max", "sum")
        and largest.write.buffer in _computed_from(dag, total)
        and {largest.write.buffer, total.write.buffer} <= _computed_from(dag, found.weights)
    )


def attention_products(
    dag: Dag, found: Attention, gpu: Gpu, is_grouped: bool = False
) -> tuple[MatrixProduct, MatrixProduct] | None:
    """Return the scores and the weighted values as matrix products whose rows are queries and whose sums are
    float32; None if they aren't, or if their operands aren't float32 and tensor cores don't know their type.
    With `is_grouped`, rows may also be of several heads that share keys and values.
    """
    products: list[MatrixProduct] = []
    rows_of_products = []
    for node in (found.scores, found.values):
        product = matrix_product(dag, node)
        if product is None or product.sums != FLOAT32:
            return None
        if product.operand != FLOAT32 and not is_on_tensor_cores(product, gpu):
            return None
        aligned = aligned_axes(dag, found.output, node)
        rows = [axis for axis in axes_of(product.parts, "i") if node.axes[axis].extent > 1]
        rows_of_products.append([aligned.get(axis) for axis in rows])
        products.append(product)
    of_scores, of_values = rows_of_products
    known = {*found.images, found.queries} if is_grouped else {found.queries}
    return (products[0], products[1]) if of_scores == of_values and {*of_scores} <= known else None


def attention_with_products(
    dag: Dag, output: Node, gpu: Gpu | None, is_grouped: bool = False
) -> tuple[Attention, MatrixProduct, MatrixProduct]:
    """Return the attention that ends in `output`, with its matrix products: the scores and the weighted
    values (`attention_products`).
    """
    found = attention_of(dag, output)
    assert found is not None, "the node ends an attention"
    assert gpu is not None, "a GPU computes it in one kernel"
    products = attention_products(dag, found, gpu, is_grouped)
    assert products is not None, "both products are matrix products"
    return found, *products


def row_skews(operand: str, keys_by_rows: bool, values_by_rows: bool) -> tuple[int, int, int]:
    """Return the elements by which rows of queries, keys and values in shared memory are padded, so that
    lanes read different banks. `ldmatrix` reads eight rows at once, of 16 bytes each. It can't transpose
    TF32: lanes read one or two values of four rows. In float32, they read four values.
    """
    if operand == FLOAT32:
        return 4, 4, 4
    if operand == TF32:
        return 4, 8 if keys_by_rows else 4, 4 if values_by_rows else 8
    return 8, 8, 8


def common_rows(dag: Dag, output: Node, members: Sequence[Node]) -> tuple[int, ...]:
    """Return the output's axes along which all members move: images and heads, then queries."""
    common = set.intersection(*(set(aligned_axes(dag, output, node).values()) for node in members))
    long = [axis for axis in common if output.axes[axis].extent > 1]
    if not long:
        return ()
    *images, queries = sorted(long, key=lambda axis: (output.axes[axis].extent, axis))
    return (*sorted(images), queries)


def _ends_in(dag: Dag, node: Node, output: Node) -> bool:
    """Return whether only the output reads a node's results, directly or after conversions."""
    readers = dag.consumers(node)
    while len(readers) == 1 and readers[0] is not output and len(readers[0].reads) == 1:
        readers = dag.consumers(readers[0])
    return readers == (output,)


def _computed_from(dag: Dag, node: Node) -> set[str]:
    """Return the buffers that a node reads, also through nodes without a reduction."""
    found = {read.buffer for read in node.reads}
    for producer in _producers(dag, node):
        if not producer.reduction:
            found |= _computed_from(dag, producer)
    return found


def _producers(dag: Dag, node: Node) -> list[Node]:
    return [dag.producer[read.buffer] for read in node.reads if read.buffer in dag.producer]
