"""Products of float32 in TF32: factors are rounded to ten bits of fraction, as in tensor cores.

The rounding is part of the workload, in arithmetic that every device has. So every device rounds equally, and
candidates are compared as strictly as in float32, because products of two rounded factors are exact.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from compiler.tir_nodes import find_all

# float32 has 13 more bits of fraction. Half of the last remaining bit is added, and the 13 bits are cleared.
_HALF, _KEPT = 0x1000, 0xFFFFE000


def rounded(value: Any) -> Any:
    """Return the expression of a float32 rounded to TF32: to the nearest, ties away from zero."""
    bits = tirx.reinterpret("uint32", value) + tirx.const(_HALF, "uint32")
    return tirx.reinterpret("float32", tirx.bitwise_and(bits, tirx.const(_KEPT, "uint32")))


def without_rounding(value: Any) -> Any:
    """Return an expression whose loads are no longer rounded.

        c[i, j] + rounded(a[i, k]) * rounded(b[k, j])
    ->
        c[i, j] + a[i, k] * b[k, j]
    """
    return tvm_ffi.structural_map(
        value, (ir.Call, lambda call: call if (load := _rounded_load(call)) is None else load)
    )


def multiplies_rounded(value: Any) -> bool:
    """Return whether an expression adds a product of two rounded loads to something."""
    products = [one for one in find_all(value, tirx.Mul) if str(one.ty.dtype) == "float32"]
    factors = [factor for product in products for factor in (product.a, product.b)]
    return len(products) == 1 and all(_rounded_load(factor) is not None for factor in factors)


def _rounded_load(value: Any) -> Any | None:
    """Return the load that an expression rounds; None if it rounds none."""
    loads = find_all(value, ir.TensorLoad)
    if not isinstance(value, ir.Call) or len(loads) != 1 or str(loads[0].ty.dtype) != "float32":
        return None
    return loads[0] if tvm_ffi.structural_equal(value, rounded(loads[0])) else None
