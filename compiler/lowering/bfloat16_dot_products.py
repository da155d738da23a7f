"""AVX-512's dot products of bfloat16, for vectors of 16 and of 8 sums. TVM has no intrinsic for them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin

from compiler.codegen.bfloat16_instructions import bfloat16_dot
from compiler.lowering.dot_products import DotProducts

# The number of sums by the name of the intrinsic.
SUMS = {"dot_16x2_dpbf16ps": 16, "dot_8x2_dpbf16ps": 8}


def register(name: str) -> None:
    """Register an intrinsic of SUMS with TVM: products of bfloat16, sums of float32."""
    lanes = SUMS[name]
    products = DotProducts(lanes, 2, rows="bfloat16", columns="bfloat16", total="float32")

    def compute(sums: Any, row: Any, columns: Any) -> tirx.Expr:
        return bfloat16_dot(sums, row, tirx.reinterpret(f"int32x{lanes}", columns), lanes)

    TensorIntrin.register(name, products.description(), products.implementation(compute), override=True)
