"""Dot products of int16 and int8 by x86's pmaddwd, for processors without VNNI.

The instruction adds two products of int16 in 32 bits, so no sum saturates. The columns are stored as bytes
and widened while they are loaded.
"""

from __future__ import annotations

from typing import Any

import tvm

from compiler.lowering.dot_products import DotProducts
from compiler.tvmscript import T
from search.sketches.intrinsics import Intrinsic

# LLVM's names of the instruction, by the number of sums.
_INSTRUCTIONS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}


def register(intrinsic: Intrinsic) -> None:
    """Register an intrinsic with TVM."""
    pairs = f"int16x{2 * intrinsic.lanes}"

    def compute(sums: Any, row: Any, columns: Any) -> Any:
        return add_pairs(sums, T.reinterpret(row, dtype=pairs), T.cast(columns, pairs))

    DotProducts.of(intrinsic).register(intrinsic.name, compute)


def add_pairs(total: Any, rows: Any, columns: Any) -> Any:
    """Return `total`, a vector of int32, plus the sums of two products of int16."""
    lanes = int(total.ty.dtype.lanes)
    instruction = tvm.target.codegen.llvm_lookup_intrinsic_id(_INSTRUCTIONS[lanes])
    return total + T.call_llvm_pure_intrin(instruction, rows, columns, dtype=f"int32x{lanes}")
