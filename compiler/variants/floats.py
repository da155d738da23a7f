"""Matrix products with floats in place of weights of a few bits."""

from __future__ import annotations

import tvm

from compiler.precision.packed_weights import unpack

# A product of one row takes as long as its weights take from memory, unless these stay in a cache.
CACHED_BYTES = 32 << 20


class Floats:
    """Computes products of packed weights with floats, which many rows share.

        c[i, j] = sum(a[i, k] * ((codes[k, j] - zero) * scale))
    ->
        c[i, j] = sum(a[i, k] * w[k, j])
    """

    name = "floats"
    # Each float is rounded once more or once less.
    exact = False

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite products of several rows, and those whose floats fit into a cache; None without any."""
        return unpack(operators, CACHED_BYTES)
