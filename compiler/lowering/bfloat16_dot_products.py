"""Dot products of bfloat16 of AVX-512 and Arm. TVM has no intrinsic for them."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from compiler.codegen.bfloat16_instructions import BFDOT, DPBF16PS, bfloat16_dot
from compiler.lowering.dot_products import DotProducts
from search.sketches.intrinsics import Intrinsic

# The functions in LLVM's IR by the instruction that ends an intrinsic's name.
FUNCTIONS = {"dpbf16ps": DPBF16PS, "bfdot": BFDOT}


def register(intrinsic: Intrinsic) -> None:
    """Register an intrinsic with TVM."""
    lanes, function = intrinsic.lanes, FUNCTIONS[intrinsic.name.rpartition("_")[2]]

    def compute(sums: Any, row: Any, columns: Any) -> tirx.Expr:
        return bfloat16_dot(sums, row, tirx.reinterpret(f"int32x{lanes}", columns), lanes, function)

    DotProducts.of(intrinsic).register(intrinsic.name, compute)
