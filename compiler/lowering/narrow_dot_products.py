"""Dot products of bytes by x86's pmaddubsw, for processors without VNNI.

The instruction adds two products of a byte and a signed byte in 16 bits, and saturates. Narrow columns
(`search.dag.NARROW`) keep these sums in range. pmaddwd with ones then adds pairs of them in 32 bits.
"""

from __future__ import annotations

from typing import Any

import tvm

from compiler.lowering.dot_products import DotProducts
from compiler.lowering.widened_dot_products import add_pairs
from compiler.tvmscript import T
from search.sketches.intrinsics import Intrinsic

# LLVM's names of the instruction, by the number of sums.
_INSTRUCTIONS = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}


def register(intrinsic: Intrinsic) -> None:
    """Register an intrinsic with TVM."""
    lanes = intrinsic.lanes

    def compute(sums: Any, row: Any, columns: Any) -> Any:
        return add_narrow_products(sums, T.reinterpret(row, dtype=f"int8x{4 * lanes}"), columns)

    DotProducts.of(intrinsic).register(intrinsic.name, compute)


def add_narrow_products(total: Any, rows: Any, columns: Any) -> Any:
    """Return `total`, a vector of int32, plus the sums of four products of bytes: unsigned `rows`, and narrow
    `columns`."""
    lanes = int(total.ty.dtype.lanes)
    instruction = tvm.target.codegen.llvm_lookup_intrinsic_id(_INSTRUCTIONS[lanes])
    pairs = T.call_llvm_pure_intrin(instruction, rows, columns, dtype=f"int16x{2 * lanes}")
    return add_pairs(total, pairs, T.broadcast(T.int16(1), 2 * lanes))
