"""Arm's products of two rows and two columns: smmla, ummla and bfmmla. TVM has no intrinsic for them.

An instruction adds to a tile of 2x2 sums in one vector. An intrinsic computes two rows of four sums in two
such tiles. It repeats the instructions along the depth, because shuffles convert rows to tiles and back.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import TensorIntrin

from compiler.codegen.bfloat16_instructions import BFMMLA, bfloat16_dot
from compiler.lowering.dot_products import describe_tile
from compiler.tvmscript import T
from search.sketches.intrinsics import Intrinsic

# The types of elements and sums, and the depth of an instruction.
_INSTRUCTIONS = {
    "smmla": ("int8", "int32", 8),
    "ummla": ("uint8", "int32", 8),
    "bfmmla": ("bfloat16", "float32", 4),
}
ROWS, LANES = 2, 4
# The lanes of two vectors of four that form the first half of their tiles, and the second.
FIRST, SECOND = (0, 1, 4, 5), (2, 3, 6, 7)


def register(intrinsic: Intrinsic) -> None:
    """Register an intrinsic of several steps with TVM."""
    instruction = intrinsic.name.rpartition("_")[2]
    types = intrinsic.rows, intrinsic.columns, intrinsic.sums
    described = describe_tile(ROWS, LANES, intrinsic.depth, intrinsic.instruction_depth, types)
    TensorIntrin.register(
        intrinsic.name, described, _implementation(instruction, intrinsic.steps), override=True
    )


def _implementation(instruction: str, steps: int) -> Any:
    dtype, total, each = _INSTRUCTIONS[instruction]
    depth = each * steps
    add = _adding(instruction)

    def row_of(rows: Any, row: int, step: int) -> Any:
        return T.reinterpret(rows.vload([row, step * each], f"{dtype}x{each}"), dtype="int32x2")

    def tile(sums: Any, rows: Any, columns: Any, column: int) -> Any:
        for step in range(steps):
            both = tirx.Shuffle([row_of(rows, 0, step), row_of(rows, 1, step)], [0, 1, 2, 3])
            pair = columns.vload([step, column, 0], f"{dtype}x{2 * each}")
            sums = add(sums, both, T.reinterpret(pair, dtype="int32x4"))
        return sums

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_stride = T.int32()
        c_stride = T.int32()
        A = T.match_buffer(a, (ROWS, depth), dtype, offset_factor=1, strides=[a_stride, 1])  # noqa: N806
        B = T.match_buffer(b, (steps, LANES, each), dtype, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (ROWS, LANES), total, offset_factor=1, strides=[c_stride, 1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:ROWS, 0:LANES], A[0:ROWS, 0:depth], B[0:steps, 0:LANES, 0:each])
            T.writes(C[0:ROWS, 0:LANES])
            upper = C.vload([0, 0], dtype=f"{total}x4")
            lower = C.vload([1, 0], dtype=f"{total}x4")
            left = tile(tirx.Shuffle([upper, lower], FIRST), A, B, 0)
            right = tile(tirx.Shuffle([upper, lower], SECOND), A, B, 2)
            C[0, T.ramp(T.int32(0), 1, LANES)] = tirx.Shuffle([left, right], FIRST)
            C[1, T.ramp(T.int32(0), 1, LANES)] = tirx.Shuffle([left, right], SECOND)

    return computed


def _adding(instruction: str) -> Any:
    """Return a function that adds the products of two vectors, given as int32s, to a tile of sums."""
    if instruction == "bfmmla":
        return lambda sums, rows, columns: bfloat16_dot(sums, rows, columns, LANES, BFMMLA)
    dtype = f"{_INSTRUCTIONS[instruction][0]}x16"
    number = tvm.target.codegen.llvm_lookup_intrinsic_id(f"llvm.aarch64.neon.{instruction}.v4i32.v16i8")

    def add(sums: Any, rows: Any, columns: Any) -> Any:
        operands = (T.reinterpret(one, dtype=dtype) for one in (rows, columns))
        return T.call_llvm_pure_intrin(number, sums, *operands, dtype="int32x4")

    return add
