"""Products of float16 with sums of float32, on CPUs that compute in float16.

Arm's `fmlal` (FEAT_FHM) multiplies halves exactly and adds the products in float32. Other CPUs with float16
arithmetic add blocks of at most BLOCK_TERMS products in halves, twice as many at once, and each block's sum
in float32. Elsewhere, operands are converted to float32.

Roundings within blocks are a random walk. The error of a sum of random terms is that of sqrt(BLOCK_TERMS / 2)
roundings to halves. It doesn't grow with the number of terms.
"""

from __future__ import annotations

from collections.abc import Collection

from search.dag import Dag, Node

# The instruction sets that compute in float16, and the one whose products have sums of float32, as Linux
# names them.
HALF_ARITHMETIC = frozenset({"avx512_fp16", "asimdhp"})
LONG_PRODUCTS = "asimdfhm"
# The products that are added in halves, at most.
BLOCK_TERMS = 16


def adds_in_blocks(features: Collection[str]) -> bool:
    """Return whether a CPU with these instruction sets adds blocks of products in halves."""
    return not HALF_ARITHMETIC.isdisjoint(features) and LONG_PRODUCTS not in features


def multiplies_halves(dag: Dag, node: Node) -> bool:
    """Return whether a node adds products of two float16 in float32."""
    types = [dag.buffer[read.buffer].dtype for read in node.reads]
    is_sum = node.reducer == "sum" and node.flops == 2
    return is_sum and types == ["float16"] * 2 and dag.buffer[node.write.buffer].dtype == "float32"
