"""AVX-512's dot products of unsigned and signed bytes, for vectors of 16 and of 8 sums.

TVM's intrinsic for 16 sums works with LLVM before version 22, which changed the operands to vectors of bytes.
Ours replaces it under the same name, so traces don't depend on the version. TVM has no intrinsic for 8 sums.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import TensorIntrin

from compiler.tvmscript import T

BYTES_SINCE_LLVM = 22


@T.prim_func(s_tir=True)
def narrow_description(a: T.handle, b: T.handle, c: T.handle) -> None:
    """c[8] += a[4] . b[8, 4]: unsigned times signed bytes."""
    A = T.match_buffer(a, (4,), "uint8", offset_factor=1)  # noqa: N806
    B = T.match_buffer(b, (8, 4), "int8", offset_factor=1)  # noqa: N806
    C = T.match_buffer(c, (8,), "int32", offset_factor=1)  # noqa: N806
    with T.sblock("root"):
        T.reads(C[0:8], A[0:4], B[0:8, 0:4])
        T.writes(C[0:8])
        for i in T.serial(0, 8):
            for k in T.serial(0, 4):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")


def dot_product(sums: int) -> Any:
    """Return the implementation of c[sums] += a[4] . b[sums, 4] (unsigned times signed bytes) by one
    instruction.
    """
    instruction = f"llvm.x86.avx512.vpdpbusd.{32 * sums}"
    int32s, uint8s, int8s = f"int32x{sums}", f"uint8x{4 * sums}", f"int8x{4 * sums}"

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4,), "uint8", offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (sums, 4), "int8", offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (sums,), "int32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:sums], A[0:4], B[0:sums, 0:4])
            T.writes(C[0:sums])
            row = T.broadcast(T.reinterpret(A.vload([0], "uint8x4"), dtype="int32"), sums)
            C[T.ramp(T.int32(0), 1, sums)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(instruction),
                C.vload([0], dtype=int32s),
                T.reinterpret(row, dtype=uint8s),
                B.vload([0, 0], dtype=int8s),
                dtype=int32s,
            )

    return computed


def register_narrow(name: str) -> None:
    TensorIntrin.register(name, narrow_description, dot_product(8), override=True)


def replace(name: str) -> None:
    """Replace TVM's intrinsic `name` if this LLVM expects vectors of bytes."""
    if tvm.get_global_func("target.llvm_version_major")() >= BYTES_SINCE_LLVM:
        known: Any = TensorIntrin.get(name)
        TensorIntrin.register(name, known.desc, dot_product(16), override=True)
