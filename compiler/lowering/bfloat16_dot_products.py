"""Dot products of bfloat16 of AVX-512 and Arm. TVM has no intrinsic for them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin

from compiler.codegen.bfloat16_instructions import BFDOT, DPBF16PS, bfloat16_dot
from compiler.lowering.dot_products import DotProducts

# The number of sums and the instruction by the name of the intrinsic.
DOT_PRODUCTS = {
    "dot_16x2_dpbf16ps": (16, DPBF16PS),
    "dot_8x2_dpbf16ps": (8, DPBF16PS),
    "dot_4x2_bfdot": (4, BFDOT),
}


def register(name: str) -> None:
    """Register an intrinsic of DOT_PRODUCTS with TVM: products of bfloat16, sums of float32."""
    lanes, instruction = DOT_PRODUCTS[name]
    products = DotProducts(lanes, 2, rows="bfloat16", columns="bfloat16", total="float32")

    def compute(sums: Any, row: Any, columns: Any) -> tirx.Expr:
        return bfloat16_dot(sums, row, tirx.reinterpret(f"int32x{lanes}", columns), lanes, instruction)

    TensorIntrin.register(name, products.description(), products.implementation(compute), override=True)
