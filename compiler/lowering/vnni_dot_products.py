"""AVX-512's dot products of unsigned and signed bytes, for vectors of 16 and of 8 sums.

TVM's intrinsic for 16 sums works with LLVM before version 22, which changed the operands to vectors of bytes.
Ours replaces it under the same name, so traces don't depend on the version. TVM has no intrinsic for 8 sums.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import TensorIntrin

from compiler.lowering.dot_products import DotProducts
from compiler.tvmscript import T

BYTES_SINCE_LLVM = 22


def register_narrow(name: str) -> None:
    products = _products(8)
    TensorIntrin.register(name, products.description(), _implementation(products), override=True)


def replace(name: str) -> None:
    """Replace TVM's intrinsic `name` if this LLVM expects vectors of bytes."""
    if tvm.get_global_func("target.llvm_version_major")() >= BYTES_SINCE_LLVM:
        known: Any = TensorIntrin.get(name)
        TensorIntrin.register(name, known.desc, _implementation(_products(16)), override=True)


def _products(sums: int) -> DotProducts:
    return DotProducts(sums, 4, rows="uint8", columns="int8", total="int32")


def _implementation(products: DotProducts) -> Any:
    """Return the implementation by one instruction."""
    lanes = products.sums
    instruction = tvm.target.codegen.llvm_lookup_intrinsic_id(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}")

    def compute(sums: Any, row: Any, columns: Any) -> Any:
        return T.call_llvm_pure_intrin(
            instruction, sums, T.reinterpret(row, dtype=f"uint8x{4 * lanes}"), columns, dtype=f"int32x{lanes}"
        )

    return products.implementation(compute)
