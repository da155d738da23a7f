"""AMX's products of tiles: the sizes of the intrinsics that use them.

A tile is a register of 16 rows of 64 bytes. An instruction adds the product of two tiles to a third one:
    sums[row, lane] += rows[row, 0] * columns[0, lane] + ... + rows[row, each - 1] * columns[each - 1, lane]
An intrinsic does this for up to 2x2 tiles of sums, which stay in registers while the loops go along the depth
(compiler.codegen.tile_instructions). The tiles at its edges are smaller than the others: Linux and the
processor let programs configure their sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from core.profile import AMX

# The rows of a tile, its bytes in a row, and how many tiles of sums an intrinsic has in each direction.
TILE_ROWS, ROW_BYTES, SIDE = 16, 64, 2
# A tile's row has this many sums.
SUMS = ROW_BYTES // 4
MAX_ROWS, MAX_LANES = SIDE * TILE_ROWS, SIDE * SUMS
# With fewer rows, lanes, or groups of neighbours along the depth, dot products are faster.
MIN_ROWS, MIN_LANES, MIN_GROUPS = 4, 8, 4
# The distances of rows that convolutions have.
STRIDES = (1, 2)


class TileInstruction(NamedTuple):
    """An instruction: the types of its operands and sums, and the instruction sets that it needs."""

    rows: str
    columns: str
    sums: str
    features: tuple[str, ...]


INSTRUCTIONS = {
    "tdpbusd": TileInstruction("uint8", "int8", "int32", ("amx_int8", "amx_tile")),
    "tdpbssd": TileInstruction("int8", "int8", "int32", ("amx_int8", "amx_tile")),
    "tdpbsud": TileInstruction("int8", "uint8", "int32", ("amx_int8", "amx_tile")),
    "tdpbuud": TileInstruction("uint8", "uint8", "int32", ("amx_int8", "amx_tile")),
    "tdpbf16ps": TileInstruction("bfloat16", "bfloat16", "float32", ("amx_bf16", "amx_tile")),
}
_NAME = re.compile(rf"amx_(\d+)x(\d+)x(\d+)(?:_by(\d+))?(?:_over(\d+))?_({'|'.join(INSTRUCTIONS)})")


@dataclass(frozen=True)
class TileProduct:
    """An intrinsic of `tall` rows and `lanes` columns. It adds `each` products to a sum.

    It reads every row of its operand that is a multiple of `stride`, as convolutions with strides do. With
    several `taps`, it continues along the depth with the row's next neighbours: a convolution of few channels
    multiplies all of a kernel's columns at once.
        sums[row, lane] += rows[stride * row + tap, k] * columns[tap, k, lane]
    """

    tall: int
    lanes: int
    each: int
    instruction: str
    stride: int = 1
    taps: int = 1

    @property
    def name(self) -> str:
        by = f"_by{self.stride}" if self.stride > 1 else ""
        over = f"_over{self.taps}" if self.taps > 1 else ""
        return f"amx_{self.tall}x{self.lanes}x{self.each}{by}{over}_{self.instruction}"

    @property
    def types(self) -> TileInstruction:
        return INSTRUCTIONS[self.instruction]

    @property
    def rows(self) -> str:
        return self.types.rows

    @property
    def columns(self) -> str:
        return self.types.columns

    @property
    def sums(self) -> str:
        return self.types.sums

    @property
    def depth(self) -> int:
        """The elements of a row, along the depth."""
        return self.each // self.taps

    @property
    def read_rows(self) -> int:
        """The rows of the operand from the first to the last that it reads."""
        return (self.tall - 1) * self.stride + self.taps

    @property
    def instruction_depth(self) -> int:
        return self.each

    @property
    def column_depth(self) -> int:
        """The elements along the depth that lie side by side in the columns: they fill 32 bits."""
        return neighbours_of(self.instruction)

    @property
    def row_tiles(self) -> tuple[int, ...]:
        """The rows of each tile of sums, from top to bottom."""
        return _parts(self.tall, TILE_ROWS)

    @property
    def lane_tiles(self) -> tuple[int, ...]:
        """The sums in a row of each tile, from left to right."""
        return _parts(self.lanes, SUMS)

    @property
    def rate(self) -> str:
        """The name of its rate in a profile's `multiply_adds`."""
        return AMX + ("bfloat16" if self.rows == "bfloat16" else "int8")


def neighbours_of(instruction: str) -> int:
    return 2 if INSTRUCTIONS[instruction].rows == "bfloat16" else 4


def tile_product(name: str) -> TileProduct | None:
    """Return the intrinsic of this name; None for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    tall, lanes, each, *places = (int(number or 1) for number in found.groups()[:5])
    return TileProduct(tall, lanes, each, found.group(6), *places)


def fitting_product(
    rows: int, lanes: int, depth: int, instruction: str, stride: int = 1, taps: int = 1
) -> TileProduct | None:
    """Return the largest intrinsic of rows with this stride that divides these extents; None if only small
    ones do. With several `taps`, it has the depth of all of them.

    Lanes and depth are multiples of the instruction's neighbours.
    """
    neighbours = neighbours_of(instruction)
    if lanes % neighbours or depth % neighbours:
        return None
    tall = _largest_divisor(rows, MAX_ROWS)
    wide = neighbours * _largest_divisor(lanes // neighbours, MAX_LANES // neighbours)
    groups = taps * depth // neighbours if taps > 1 else _largest_divisor(depth // neighbours, TILE_ROWS)
    if tall < MIN_ROWS or wide < MIN_LANES or not MIN_GROUPS <= groups <= TILE_ROWS:
        return None
    return TileProduct(tall, wide, groups * neighbours, instruction, stride, taps)


def _largest_divisor(extent: int, limit: int) -> int:
    return next(one for one in range(min(limit, extent), 0, -1) if extent % one == 0)


def _parts(extent: int, limit: int) -> tuple[int, ...]:
    return (extent,) if extent <= limit else (limit, extent - limit)
