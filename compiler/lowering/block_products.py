"""Products of rows of int8 and blocks of packed weights (search.sketches.block_products)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin

from compiler.lowering.widened_dot_products import add_pairs
from compiler.tvmscript import T
from search.sketches.block_products import HALVES, NEIGHBOURS, BlockProduct

BITS, MASK = 4, 15
# In each byte: the lower half, the number 1, and the highest bit.
LOWER_HALVES, ONES, HIGHEST = 0x0F0F0F0F, 0x01010101, -0x7F7F7F80
# In each int16: the number 1, and the lower byte.
ONES_16, LOWER_BYTES = 1, 0xFF
# AVX2 adds this many dot products of 4-bit codes in int16: each is at most 2 * 15 * 127.
IN_16_BITS = 8


def register(product: BlockProduct) -> None:
    """Register an intrinsic with TVM."""
    TensorIntrin.register(product.name, _description(product), _implementation(product), override=True)


def _description(product: BlockProduct) -> Any:
    lanes, steps, points = product.lanes, product.steps, product.points
    shape = _codes_shape(product)
    box = tuple(slice(0, extent) for extent in shape)

    def code(codes: Any, step: Any, half: Any, lane: Any, neighbour: Any) -> Any:
        if product.bits > BITS:
            return T.cast(codes[step, half, lane, neighbour], "int32")
        pair = T.cast(codes[step, lane, neighbour], "int32")
        return T.bitwise_and(T.shift_right(pair, T.cast(half, "int32") * BITS), MASK)

    @T.prim_func(s_tir=True)
    def described(
        scale: T.handle, scales: T.handle, rows: T.handle, codes: T.handle, zeros: T.handle, sums: T.handle
    ) -> None:
        S = T.match_buffer(scale, (1,), "float32", offset_factor=1)  # noqa: N806
        F = T.match_buffer(scales, (lanes,), "float32", offset_factor=1)  # noqa: N806
        R = T.match_buffer(rows, (steps, HALVES, NEIGHBOURS), "int8", offset_factor=1)  # noqa: N806
        B = T.match_buffer(codes, shape, "uint8", offset_factor=1)  # noqa: N806
        Z = T.match_buffer(zeros, (points,), "uint8", offset_factor=1)  # noqa: N806
        C = T.match_buffer(sums, (lanes,), "float32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], S[0:1], F[0:lanes], R[0:steps, 0:HALVES, 0:NEIGHBOURS], B[box], Z[0:points])
            T.writes(C[0:lanes])
            for p, h, j, r in T.grid(T.int64(steps), T.int64(HALVES), T.int64(lanes), T.int64(NEIGHBOURS)):
                with T.sblock("update"):
                    vj, vp, vh, vr = T.axis.remap("SRRR", [j, p, h, r])
                    C[vj] = C[vj] + S[0] * F[vj] * T.cast(
                        T.cast(R[vp, vh, vr], "int32")
                        * (code(B, vp, vh, vj, vr) - T.cast(Z[vj if points > 1 else 0], "int32")),
                        "float32",
                    )

    return described


def _implementation(product: BlockProduct) -> Any:
    lanes, steps, points = product.lanes, product.steps, product.points
    shape = _codes_shape(product)
    box = tuple(slice(0, extent) for extent in shape)
    dots = _integers(product)

    @T.prim_func(s_tir=True)
    def computed(
        scale: T.handle, scales: T.handle, rows: T.handle, codes: T.handle, zeros: T.handle, sums: T.handle
    ) -> None:
        S = T.match_buffer(scale, (1,), "float32", offset_factor=1)  # noqa: N806
        F = T.match_buffer(scales, (lanes,), "float32", offset_factor=1)  # noqa: N806
        R = T.match_buffer(rows, (steps, HALVES, NEIGHBOURS), "int8", offset_factor=1)  # noqa: N806
        B = T.match_buffer(codes, shape, "uint8", offset_factor=1)  # noqa: N806
        Z = T.match_buffer(zeros, (points,), "uint8", offset_factor=1)  # noqa: N806
        C = T.match_buffer(sums, (lanes,), "float32", offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], S[0:1], F[0:lanes], R[0:steps, 0:HALVES, 0:NEIGHBOURS], B[box], Z[0:points])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = C.vload([0], dtype=f"float32x{lanes}") + T.broadcast(
                S[0], lanes
            ) * F.vload([0], dtype=f"float32x{lanes}") * T.cast(dots(R, B, Z), f"float32x{lanes}")

    return computed


def _codes_shape(product: BlockProduct) -> tuple[int, ...]:
    halves = () if product.bits == BITS else (HALVES,)
    return (product.steps, *halves, product.lanes, NEIGHBOURS)


def _integers(product: BlockProduct) -> Any:
    """Return a function that returns the sums of a block in int32.

        sum_k rows[k] * (codes[lane, k] - zeros[lane])
    ->
        sum_k rows[k] * codes[lane, k] - zeros[lane] * sum_k rows[k]

    The last sum is a dot product with ones. Tiles of one row share it. Signed dot products need codes and
    zeros that are smaller by 128.
    """
    lanes = product.lanes
    vector, num_bytes = f"int32x{lanes}", NEIGHBOURS * lanes
    is_shifted = product.instructions == "sdot" and product.bits > BITS
    add_up = _adding_up(product)

    def filled(value: int) -> Any:
        return T.broadcast(T.int32(value), lanes)

    def half_codes(codes: Any, step: int, half: int) -> Any:
        if product.bits > BITS:
            loaded = T.reinterpret(codes.vload([step, half, 0, 0], f"uint8x{num_bytes}"), dtype=vector)
            return T.bitwise_xor(loaded, filled(HIGHEST)) if is_shifted else loaded
        packed = T.reinterpret(codes.vload([step, 0, 0], f"uint8x{num_bytes}"), dtype=vector)
        shifted = T.shift_right(packed, filled(BITS)) if half else packed
        return T.bitwise_and(shifted, filled(LOWER_HALVES))

    def dots(rows: Any, codes: Any, zeros: Any) -> Any:
        halves = [(step, half) for step in range(product.steps) for half in range(HALVES)]
        of_rows = [
            T.broadcast(T.reinterpret(rows.vload([*place, 0], f"int8x{NEIGHBOURS}"), dtype="int32"), lanes)
            for place in halves
        ]
        total = add_up([half_codes(codes, *place) for place in halves], of_rows)
        sums = add_up([filled(ONES)] * len(halves), of_rows)
        if product.points > 1:
            subtracted = T.cast(zeros.vload([0], f"uint8x{lanes}"), vector)
        else:
            subtracted = T.broadcast(T.cast(zeros[0], "int32"), lanes)
        return total - sums * (subtracted - filled(128) if is_shifted else subtracted)

    return dots


def _adding_up(product: BlockProduct) -> Callable[[list[Any], list[Any]], Any]:
    """Return a function that adds up dot products of bytes. Its vectors hold four bytes in an int32."""
    lanes = product.lanes
    vector, in_bytes, in_pairs = f"int32x{lanes}", f"int8x{NEIGHBOURS * lanes}", f"int16x{2 * lanes}"

    def instruction(name: str) -> Callable[..., Any]:
        number = tvm.target.codegen.llvm_lookup_intrinsic_id(name)
        return lambda dtype, *operands: T.call_llvm_pure_intrin(number, *operands, dtype=dtype)

    def by_dot_products(codes: list[Any], rows: list[Any]) -> Any:
        is_arm = product.instructions == "sdot"
        name = "aarch64.neon.sdot.v4i32.v16i8" if is_arm else f"x86.avx512.vpdpbusd.{32 * lanes}"
        dot, of_codes = instruction(f"llvm.{name}"), in_bytes if is_arm else f"u{in_bytes}"
        total = T.broadcast(T.int32(0), lanes)
        for code, row in zip(codes, rows, strict=True):
            total = dot(
                vector, total, T.reinterpret(code, dtype=of_codes), T.reinterpret(row, dtype=in_bytes)
            )
        return total

    def by_pairs_of_bytes(codes: list[Any], rows: list[Any]) -> Any:
        """Codes of 4 bits: sums of eight pairs fit int16, so nothing saturates."""
        multiply = instruction("llvm.x86.avx2.pmadd.ub.sw")
        ones = T.broadcast(T.int16(ONES_16), 2 * lanes)
        total = T.broadcast(T.int32(0), lanes)
        for start in range(0, len(codes), IN_16_BITS):
            pairs = [
                multiply(in_pairs, T.reinterpret(code, dtype=in_bytes), T.reinterpret(row, dtype=in_bytes))
                for code, row in zip(codes[start:][:IN_16_BITS], rows[start:], strict=False)
            ]
            total = add_pairs(total, sum(pairs[1:], pairs[0]), ones)
        return total

    def by_pairs_of_int16(codes: list[Any], rows: list[Any]) -> Any:
        """Multiply the first and third bytes, and the second and fourth, as int16."""
        byte, lower = T.broadcast(T.int16(8), 2 * lanes), T.broadcast(T.int16(LOWER_BYTES), 2 * lanes)
        total = T.broadcast(T.int32(0), lanes)
        for code, row in zip(codes, rows, strict=True):
            code, row = (T.reinterpret(one, dtype=in_pairs) for one in (code, row))
            odd = T.bitwise_and(T.shift_right(code, byte), lower)
            even_row = T.shift_right(T.shift_left(row, byte), byte)
            total = add_pairs(total, T.bitwise_and(code, lower), even_row)
            total = add_pairs(total, odd, T.shift_right(row, byte))
        return total

    if product.instructions != "avx2":
        return by_dot_products
    return by_pairs_of_bytes if product.bits == BITS else by_pairs_of_int16
