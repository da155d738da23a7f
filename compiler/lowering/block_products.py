"""AVX-512's products of rows of int8 and blocks of packed weights (search.sketches.block_products)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import TensorIntrin

from compiler.tvmscript import T
from search.sketches.block_products import HALVES, NEIGHBOURS, BlockProduct

BITS, MASK = 4, 15
# In each byte: the lower half, and the number 1.
LOWER_HALVES, ONES = 0x0F0F0F0F, 0x01010101


def register(product: BlockProduct) -> None:
    """Register an intrinsic with TVM."""
    TensorIntrin.register(product.name, _description(product), _implementation(product), override=True)


def _description(product: BlockProduct) -> Any:
    lanes, steps, points = product.lanes, product.steps, product.points

    @T.prim_func(s_tir=True)
    def described(
        scale: T.handle, scales: T.handle, rows: T.handle, codes: T.handle, zeros: T.handle, sums: T.handle
    ) -> None:
        S = T.match_buffer(scale, (1,), "float32", offset_factor=1)  # noqa: N806
        F = T.match_buffer(scales, (lanes,), "float32", offset_factor=1)  # noqa: N806
        R = T.match_buffer(rows, (steps, HALVES, NEIGHBOURS), "int8", offset_factor=1)  # noqa: N806
        B = T.match_buffer(codes, (steps, lanes, NEIGHBOURS), "uint8", offset_factor=1)  # noqa: N806
        Z = T.match_buffer(zeros, (points,), "uint8", offset_factor=1)  # noqa: N806
        C = T.match_buffer(sums, (lanes,), "float32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(
                C[0:lanes],
                S[0:1],
                F[0:lanes],
                R[0:steps, 0:HALVES, 0:NEIGHBOURS],
                B[0:steps, 0:lanes, 0:NEIGHBOURS],
                Z[0:points],
            )
            T.writes(C[0:lanes])
            for p, h, j, r in T.grid(T.int64(steps), T.int64(HALVES), T.int64(lanes), T.int64(NEIGHBOURS)):
                with T.sblock("update"):
                    vj, vp, vh, vr = T.axis.remap("SRRR", [j, p, h, r])
                    C[vj] = C[vj] + S[0] * F[vj] * T.cast(
                        T.cast(R[vp, vh, vr], "int32")
                        * (
                            T.bitwise_and(
                                T.shift_right(T.cast(B[vp, vj, vr], "int32"), T.cast(vh, "int32") * BITS),
                                MASK,
                            )
                            - T.cast(Z[vj if points > 1 else 0], "int32")
                        ),
                        "float32",
                    )

    return described


def _implementation(product: BlockProduct) -> Any:
    lanes, steps, points = product.lanes, product.steps, product.points
    dots = _integers(product)

    @T.prim_func(s_tir=True)
    def computed(
        scale: T.handle, scales: T.handle, rows: T.handle, codes: T.handle, zeros: T.handle, sums: T.handle
    ) -> None:
        S = T.match_buffer(scale, (1,), "float32", offset_factor=1)  # noqa: N806
        F = T.match_buffer(scales, (lanes,), "float32", offset_factor=1)  # noqa: N806
        R = T.match_buffer(rows, (steps, HALVES, NEIGHBOURS), "int8", offset_factor=1)  # noqa: N806
        B = T.match_buffer(codes, (steps, lanes, NEIGHBOURS), "uint8", offset_factor=1)  # noqa: N806
        Z = T.match_buffer(zeros, (points,), "uint8", offset_factor=1)  # noqa: N806
        C = T.match_buffer(sums, (lanes,), "float32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(
                C[0:lanes],
                S[0:1],
                F[0:lanes],
                R[0:steps, 0:HALVES, 0:NEIGHBOURS],
                B[0:steps, 0:lanes, 0:NEIGHBOURS],
                Z[0:points],
            )
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = C.vload([0], dtype=f"float32x{lanes}") + T.broadcast(
                S[0], lanes
            ) * F.vload([0], dtype=f"float32x{lanes}") * T.cast(dots(R, B, Z), f"float32x{lanes}")

    return computed


def _integers(product: BlockProduct) -> Any:
    """Return a function that returns the sums of a block in int32.

        sum_k rows[k] * (codes[lane, k] - zeros[lane])
    ->
        sum_k rows[k] * codes[lane, k] - zeros[lane] * sum_k rows[k]

    The last sum is a dot product with ones. Tiles of one row share it.
    """
    lanes = product.lanes
    vector, num_bytes = f"int32x{lanes}", NEIGHBOURS * lanes
    instruction = tvm.target.codegen.llvm_lookup_intrinsic_id(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}")

    def filled(value: int) -> Any:
        return T.broadcast(T.int32(value), lanes)

    def add(total: Any, unsigned: Any, row: Any) -> Any:
        operands = (
            T.reinterpret(unsigned, dtype=f"uint8x{num_bytes}"),
            T.reinterpret(T.broadcast(row, lanes), dtype=f"int8x{num_bytes}"),
        )
        return T.call_llvm_pure_intrin(instruction, total, *operands, dtype=vector)

    def dots(rows: Any, codes: Any, zeros: Any) -> Any:
        total = sums = filled(0)
        for step in range(product.steps):
            packed = T.reinterpret(codes.vload([step, 0, 0], f"uint8x{num_bytes}"), dtype=vector)
            for half in range(HALVES):
                row = T.reinterpret(rows.vload([step, half, 0], f"int8x{NEIGHBOURS}"), dtype="int32")
                shifted = T.shift_right(packed, filled(BITS)) if half else packed
                total = add(total, T.bitwise_and(shifted, filled(LOWER_HALVES)), row)
                sums = add(sums, filled(ONES), row)
        if product.points > 1:
            return total - sums * T.cast(zeros.vload([0], f"uint8x{lanes}"), vector)
        return total - sums * T.broadcast(T.cast(zeros[0], "int32"), lanes)

    return dots
