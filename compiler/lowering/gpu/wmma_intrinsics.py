"""Tensor-core intrinsics for bfloat16 and TF32, which TVM doesn't define. TVM's own generators make them."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from compiler.precision.tf32 import rounded
from compiler.tvmscript import T
from search.sketches.tensor_core import SIDE, TF32_DEPTH

SHARED = "shared.dyn"
SIDES = (SIDE, SIDE, SIDE)
TF32_SIDES = (SIDE, SIDE, TF32_DEPTH)
# The suffix in the names of TF32 intrinsics.
_TF32_NAMES = f"_{SIDE}x{SIDE}x{TF32_DEPTH}_"


def is_missing(name: str) -> bool:
    """Return whether this module defines the intrinsic and TVM doesn't."""
    return name.startswith("wmma_") and ("_bf16" in name or _TF32_NAMES in name)


def register(name: str, generators: Any) -> None:
    """Register an intrinsic under a name like TVM's own. `generators` is the TVM module that makes those."""
    transposed, is_second = "_trans" in name, "_b_" in name
    is_tf32 = _TF32_NAMES in name
    sides, operand = (TF32_SIDES, "float32") if is_tf32 else (SIDES, "bfloat16")
    match name.split("_")[1]:
        case "fill":
            intrinsic = generators.get_wmma_fill_intrin(*sides, "float32")
        case "load":
            intrinsic = generators.get_wmma_load_intrin(*sides, operand, SHARED, is_second, transposed)
        case "store":
            intrinsic = generators.get_wmma_store_intrin(*sides, "float32", SHARED)
        case _:
            intrinsic = generators.get_wmma_sync_intrin(*sides, operand, "float32", transposed)
            if is_tf32:
                intrinsic = _rounded_products(transposed), intrinsic[1]
    TensorIntrin.register(name, *intrinsic)


def _rounded_products(transposed: bool) -> PrimFunc:
    """Describe a product in TF32. Loading already rounds fragments (compiler.codegen.fragments); rounding
    again changes nothing.
    """
    m, n, k = TF32_SIDES
    rows, columns = (n, k) if transposed else (k, n)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(  # noqa: N806
            a, (m, k), "float32", align=64, offset_factor=k, scope="wmma.matrix_a"
        )
        B = T.match_buffer(  # noqa: N806
            b, (rows, columns), "float32", align=64, offset_factor=columns, scope="wmma.matrix_b"
        )
        C = T.match_buffer(  # noqa: N806
            c, (m, n), "float32", align=64, offset_factor=n, scope="wmma.accumulator"
        )
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:m, 0:k], B[0:rows, 0:columns])
            T.writes(C[0:m, 0:n])
            for i, j, s in T.grid(m, n, k):
                with T.sblock(""):
                    vi, vj, vs = T.axis.remap("SSR", [i, j, s])
                    row, column = T.meta_var((vj, vs) if transposed else (vs, vj))
                    C[vi, vj] = C[vi, vj] + rounded(A[vi, vs]) * rounded(B[row, column])

    return description
