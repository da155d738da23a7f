"""AVX-512's dot products of bfloat16, for vectors of 16 and of 8 sums. TVM has no intrinsic for them."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import TensorIntrin

from compiler.codegen.bfloat16 import bfloat16_dot
from compiler.tvmscript import T

# The number of sums by the name of the intrinsic.
SUMS = {"dot_16x2_dpbf16ps": 16, "dot_8x2_dpbf16ps": 8}


def register(name: str) -> None:
    """Register an intrinsic of SUMS with TVM."""
    sums = SUMS[name]
    TensorIntrin.register(name, _description(sums), _instruction(sums), override=True)


def _description(sums: int) -> Any:
    """Return c[sums] += a[2] . b[sums, 2]: products of bfloat16, sums of float32."""

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2,), "bfloat16", offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (sums, 2), "bfloat16", offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (sums,), "float32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:sums], A[0:2], B[0:sums, 0:2])
            T.writes(C[0:sums])
            for i in T.serial(0, sums):
                for k in T.serial(0, 2):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "float32") * T.cast(B[vi, vk], "float32")

    return described


def _instruction(sums: int) -> Any:
    """Return the implementation of `_description` by one instruction."""
    floats, pairs, halves = f"float32x{sums}", f"int32x{sums}", f"bfloat16x{2 * sums}"

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2,), "bfloat16", offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (sums, 2), "bfloat16", offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (sums,), "float32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:sums], A[0:2], B[0:sums, 0:2])
            T.writes(C[0:sums])
            C[T.ramp(T.int32(0), 1, sums)] = bfloat16_dot(
                C.vload([0], dtype=floats),
                T.broadcast(T.reinterpret(A.vload([0], "bfloat16x2"), dtype="int32"), sums),
                T.reinterpret(B.vload([0, 0], dtype=halves), dtype=pairs),
                sums,
            )

    return computed
