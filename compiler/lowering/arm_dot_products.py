"""Arm's dot products of four bytes: sdot and udot.

TVM's intrinsics store every operand in a buffer of its own. Ours are one expression, in which
`compiler.codegen.lane_loads` joins the loads of rows. The row is the operand that LLVM may take from a lane.
"""

from __future__ import annotations

from typing import Any

import tvm

from compiler.lowering.dot_products import DotProducts
from compiler.tvmscript import T
from search.sketches.intrinsics import Intrinsic

# By the intrinsic's name.
INSTRUCTIONS = {
    "dot_4x4_i8i8s32_sdot": "sdot",
    "dot_4x4_u8u8u32_udot": "udot",
    "dot_4x4_u8u8i32_hdot": "udot",
}


def replace(intrinsic: Intrinsic) -> None:
    """Replace TVM's intrinsic."""
    products = DotProducts.of(intrinsic)
    sums, num_bytes = products.sums, products.sums * products.length
    instruction = tvm.target.codegen.llvm_lookup_intrinsic_id(
        f"llvm.aarch64.neon.{INSTRUCTIONS[intrinsic.name]}.v{sums}i32.v{num_bytes}i8"
    )

    def compute(total: Any, row: Any, columns: Any) -> Any:
        return T.call_llvm_pure_intrin(
            instruction,
            total,
            columns,
            T.reinterpret(row, dtype=f"{products.rows}x{num_bytes}"),
            dtype=f"{products.total}x{sums}",
        )

    products.register(intrinsic.name, compute)
