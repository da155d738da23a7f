"""A variant that unpacks the weights of matrix products to floats ahead of time."""

from __future__ import annotations

import tvm

from compiler.precision.packed_weights import CACHED_BYTES, unpack


class Floats:
    """Computes products of packed weights with unpacked weights, which many rows share.

        c[i, j] = sum(a[i, k] * ((codes[k, j] - zero) * scale))
    ->
        c[i, j] = sum(a[i, k] * w[k, j])
    """

    name = "floats"
    # Unpacking ahead of time may round each float once more or once less.
    exact = False

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Unpack weights of products with several rows, or that fit a cache; None if there are none."""
        return unpack(operators, CACHED_BYTES)
