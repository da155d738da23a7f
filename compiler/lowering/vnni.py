"""AVX-512's dot products of unsigned and signed bytes, for vectors of 16 and of 8 sums.

TVM's own form of the first fits LLVM before version 22, in which its operands became vectors of bytes. Ours
replaces it under the same name, so that traces stay the same for all versions. TVM has none of the second.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

BYTES_SINCE_LLVM = 22


@T.prim_func(s_tir=True)
def dot_product(a: T.handle, b: T.handle, c: T.handle) -> None:
    """c[16] += a[4] . b[16, 4]: unsigned times signed bytes."""
    A = T.match_buffer(a, (4,), "uint8", offset_factor=1)  # noqa: N806
    B = T.match_buffer(b, (16, 4), "int8", offset_factor=1)  # noqa: N806
    C = T.match_buffer(c, (16,), "int32", offset_factor=1)  # noqa: N806
    with T.sblock("root"):
        T.reads(C[0:16], A[0:4], B[0:16, 0:4])
        T.writes(C[0:16])
        row = T.broadcast(T.reinterpret(A.vload([0], "uint8x4"), dtype="int32"), 16)
        C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            C.vload([0], dtype="int32x16"),
            T.reinterpret(row, dtype="uint8x64"),
            B.vload([0, 0], dtype="int8x64"),
            dtype="int32x16",
        )


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


@T.prim_func(s_tir=True)
def narrow_dot_product(a: T.handle, b: T.handle, c: T.handle) -> None:
    """c[8] += a[4] . b[8, 4]: unsigned times signed bytes."""
    A = T.match_buffer(a, (4,), "uint8", offset_factor=1)  # noqa: N806
    B = T.match_buffer(b, (8, 4), "int8", offset_factor=1)  # noqa: N806
    C = T.match_buffer(c, (8,), "int32", offset_factor=1)  # noqa: N806
    with T.sblock("root"):
        T.reads(C[0:8], A[0:4], B[0:8, 0:4])
        T.writes(C[0:8])
        row = T.broadcast(T.reinterpret(A.vload([0], "uint8x4"), dtype="int32"), 8)
        C[T.ramp(T.int32(0), 1, 8)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.256"),
            C.vload([0], dtype="int32x8"),
            T.reinterpret(row, dtype="uint8x32"),
            B.vload([0, 0], dtype="int8x32"),
            dtype="int32x8",
        )


def register_narrow(name: str) -> None:
    TensorIntrin.register(name, narrow_description, narrow_dot_product, override=True)


def replace(name: str) -> None:
    """Replace TVM's intrinsic `name` if LLVM wants vectors of bytes."""
    if tvm.get_global_func("target.llvm_version_major")() >= BYTES_SINCE_LLVM:
        known: Any = TensorIntrin.get(name)
        TensorIntrin.register(name, known.desc, dot_product, override=True)
