"""The dot-product instructions of CPUs, and how nodes match them.

An instruction adds to each of its lanes the products of a few neighbours along the reduction:
    sums[lane] += rows[0] * columns[lane, 0] + ... + rows[depth - 1] * columns[lane, depth - 1]
The operand `columns` needs a special layout, so it is packed or copied. The operand `rows` is read in place,
so the reduction must be contiguous in it.

Arm's smmla, ummla and bfmmla multiply two rows at once: `tall` is 2. Their sums need another order than
rows, so an intrinsic repeats them before it restores the order.

x86's pmaddubsw saturates sums of two products at 16 bits. It multiplies narrow columns only, for which no sum
is so large. pmaddwd multiplies other bytes as int16.

Only AMX has an instruction for int8 times int8 on x86. Shifting one side by 128 would change the computation.
`search.sketches.tile_products` describes AMX's products of tiles, and `search.sketches.block_products`
sequences of instructions that multiply blocks of packed weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from core.device import Device
from core.profile import DOT
from search.dag import AxisKind, BufferAccess, BufferRole, Dag, Node
from search.sketches.block_products import (
    BlockProduct,
    BlockRoles,
    best_block_product,
    block_product,
    block_roles,
)
from search.sketches.predicates import is_permutation, writes_boxes
from search.sketches.stage import Stage
from search.sketches.tile_products import (
    INSTRUCTIONS,
    STRIDES,
    TileProduct,
    fitting_product,
    neighbours_of,
    tile_product,
)


@dataclass(frozen=True)
class Intrinsic:
    """`name` is TVM's name. A device needs all `features`, in the Linux kernel's spelling. `tall` is the
    number of rows. An intrinsic of several `steps` repeats its instruction along the depth. `narrow` columns
    are from -NARROW to NARROW.
    """

    name: str
    lanes: int
    depth: int
    rows: str
    columns: str
    sums: str
    features: tuple[str, ...]
    tall: int = 1
    steps: int = 1
    narrow: bool = False

    @property
    def instruction_depth(self) -> int:
        return self.depth // self.steps

    @property
    def column_depth(self) -> int:
        """The elements along the depth that lie side by side in the columns."""
        return self.instruction_depth

    @property
    def adds_apart(self) -> bool:
        """Whether one instruction multiplies, and another adds the products to the sums: x86's pmaddubsw and
        pmaddwd."""
        return self.narrow or self.rows == "int16"

    @property
    def is_widened(self) -> bool:
        """Whether it widens the columns to the rows' type before it multiplies them."""
        return (self.rows, self.columns) == ("int16", "int8")

    @property
    def rate(self) -> str:
        """The name of its rate in a profile's `multiply_adds`."""
        return "int8" if self.rows in ("int8", "uint8") and not self.narrow else DOT + self.rows


# Faster intrinsics come first.
INTRINSICS = [
    Intrinsic("dot_16x4_vnni", 16, 4, "uint8", "int8", "int32", ("avx512_vnni",)),
    Intrinsic("dot_8x4_vnni", 8, 4, "uint8", "int8", "int32", ("avx512_vnni", "avx512vl")),
    Intrinsic("dot_16x2_dpbf16ps", 16, 2, "bfloat16", "bfloat16", "float32", ("avx512_bf16",)),
    Intrinsic("dot_8x2_dpbf16ps", 8, 2, "bfloat16", "bfloat16", "float32", ("avx512_bf16", "avx512vl")),
    Intrinsic("dot_8x4_avx_vnni", 8, 4, "uint8", "int8", "int32", ("avx_vnni",)),
    Intrinsic("dot_16x4_pmaddubsw", 16, 4, "uint8", "int8", "int32", ("avx512bw",), narrow=True),
    Intrinsic("dot_8x4_pmaddubsw", 8, 4, "uint8", "int8", "int32", ("avx2",), narrow=True),
    Intrinsic("dot_16x2_pmaddwd", 16, 2, "int16", "int8", "int32", ("avx512bw",)),
    Intrinsic("dot_8x2_pmaddwd", 8, 2, "int16", "int8", "int32", ("avx2",)),
    Intrinsic("dot_16x2_int16_pmaddwd", 16, 2, "int16", "int16", "int32", ("avx512bw",)),
    Intrinsic("dot_8x2_int16_pmaddwd", 8, 2, "int16", "int16", "int32", ("avx2",)),
    Intrinsic("mmla_2x4x64_smmla", 4, 64, "int8", "int8", "int32", ("i8mm",), tall=2, steps=8),
    Intrinsic("mmla_2x4x32_smmla", 4, 32, "int8", "int8", "int32", ("i8mm",), tall=2, steps=4),
    Intrinsic("mmla_2x4x64_ummla", 4, 64, "uint8", "uint8", "int32", ("i8mm",), tall=2, steps=8),
    Intrinsic("mmla_2x4x32_ummla", 4, 32, "uint8", "uint8", "int32", ("i8mm",), tall=2, steps=4),
    Intrinsic("mmla_2x4x32_bfmmla", 4, 32, "bfloat16", "bfloat16", "float32", ("bf16",), tall=2, steps=8),
    Intrinsic("mmla_2x4x16_bfmmla", 4, 16, "bfloat16", "bfloat16", "float32", ("bf16",), tall=2, steps=4),
    Intrinsic("dot_4x2_bfdot", 4, 2, "bfloat16", "bfloat16", "float32", ("bf16",)),
    Intrinsic("dot_4x4_i8i8s32_sdot", 4, 4, "int8", "int8", "int32", ("asimddp",)),
    Intrinsic("dot_4x4_u8u8u32_udot", 4, 4, "uint8", "uint8", "uint32", ("asimddp",)),
    Intrinsic("dot_4x4_u8u8i32_hdot", 4, 4, "uint8", "uint8", "int32", ("asimddp",)),
    Intrinsic("dot_4x4_i8i8s32_neon", 4, 4, "int8", "int8", "int32", ("asimd",)),
]
BY_NAME = {intrinsic.name: intrinsic for intrinsic in INTRINSICS}


def register_intrinsic(intrinsic: Intrinsic) -> None:
    """Add an intrinsic to the search, after the built-in ones. Adding it again has no effect."""
    if intrinsic.name not in BY_NAME:
        BY_NAME[intrinsic.name] = intrinsic
        INTRINSICS.append(intrinsic)


@dataclass(frozen=True)
class Roles:
    """The axes (by position) and operands (by name) of a node that an intrinsic takes. `extents` are the
    intrinsic's, by axis: rows if it is tall, lanes, depth."""

    lane: int
    depth: int
    rows: str
    columns: str
    extents: Mapping[int, int]


def dot_product(
    features: Collection[str], lanes: int, columns: str, sums: str = "int32", *, narrow: bool = False
) -> Intrinsic | None:
    """Return the best intrinsic of one row for `columns` of this type, which may be `narrow`, and `lanes`
    sums of the type `sums`; None if a device with these features has none.
    """
    for intrinsic in INTRINSICS:
        fits = lanes > 0 and lanes % intrinsic.lanes == 0 and intrinsic.columns == columns
        fits = fits and intrinsic.tall == 1 and (narrow or not intrinsic.narrow)
        if fits and intrinsic.sums == sums and set(intrinsic.features) <= set(features):
            return intrinsic
    return None


def best_intrinsics(dag: Dag, node: Node, device: Device) -> list[Intrinsic | BlockProduct | TileProduct]:
    """Return the device's intrinsics that match the node and may be fastest: a product of tiles, and the best
    of the others. Tiles are slower where they are small.
    """
    tiles = best_tile_product(dag, node, device)
    other = best_intrinsic(dag, node, device)
    return [one for one in (tiles, other) if one is not None]


def best_intrinsic(dag: Dag, node: Node, device: Device) -> Intrinsic | BlockProduct | None:
    """Return the device's best intrinsic that matches the node, except products of tiles."""
    for intrinsic in INTRINSICS:
        if set(intrinsic.features) <= set(device.features) and match_roles(dag, node, intrinsic):
            return intrinsic
    return best_block_product(dag, node, device)


def best_tile_product(dag: Dag, node: Node, device: Device) -> TileProduct | None:
    """Return the device's largest product of tiles that matches the node. One of several taps is for few
    channels.
    """
    for (name, instruction), stride in itertools.product(INSTRUCTIONS.items(), STRIDES):
        if not set(instruction.features) <= set(device.features):
            continue
        each = neighbours_of(name)
        roles = match_roles(dag, node, TileProduct(1, each, each, name, stride))
        if roles is not None:
            rows, lanes, depth = (node.axes[axis].extent for axis in roles.extents)
            taps = [node.axes[axis].extent for axis in node.reduction]
            products = (fitting_product(rows, lanes, depth, name, stride, count) for count in (1, *taps))
            found = [one for one in products if one is not None and match_roles(dag, node, one)]
            return found[0] if found else None
    return None


def intrinsic_of(stage: Stage) -> Intrinsic | BlockProduct | TileProduct | None:
    """Return the intrinsic of a tiled stage; None without one."""
    name = stage.intrinsic
    return BY_NAME.get(name) or tile_product(name) or block_product(name)


def match_roles(dag: Dag, node: Node, intrinsic: Intrinsic | TileProduct) -> Roles | None:
    """Return the intrinsic's roles in `node`; None if the node doesn't match or the extents don't divide."""
    lane = node.vector_axis
    is_dot = node.reducer == "sum" and len(node.reads) == 2 and node.flops == 2
    if (
        lane is None
        or not is_dot
        or not writes_boxes(node)
        or dag.buffer[node.write.buffer].dtype != intrinsic.sums
    ):
        return None
    for rows, columns in (node.reads, node.reads[::-1]):
        depth = _contiguous_axis(rows)
        if depth is not None and _fits(dag, node, intrinsic, (rows, columns), (lane, depth)):
            extents = _extents(dag, node, intrinsic, (rows, columns), (lane, depth))
            if extents is not None:
                return Roles(lane, depth, rows.buffer, columns.buffer, extents)
    return None


def _extents(
    dag: Dag,
    node: Node,
    intrinsic: Intrinsic | TileProduct,
    operands: tuple[BufferAccess, BufferAccess],
    axes: tuple[int, int],
) -> Mapping[int, int] | None:
    """Return an intrinsic's extents by the axis: rows and taps if it has several, lanes, depth. None if the
    extents don't divide, or if the rows' neighbours don't continue the depth.
    """
    (rows, columns), (lane, depth) = operands, axes
    product = intrinsic if isinstance(intrinsic, TileProduct) else None
    inner = {lane: intrinsic.lanes, depth: intrinsic.depth}
    if intrinsic.tall == 1 and product is None:
        return inner
    row = _row_axis(node, rows, columns, 1 if product is None else product.stride)
    if row is None or node.axes[row].extent % intrinsic.tall:
        return None
    if product is None or product.taps == 1:
        return {row: intrinsic.tall, **inner}
    is_whole = dag.buffer[rows.buffer].shape[-1] == node.axes[depth].extent == product.depth
    taps = [
        term.axis
        for term in rows.indices[-2].terms
        if term[1:] == (1, 1) and term.axis in node.reduction and term.axis in columns.axes
    ]
    if not is_whole or len(taps) != 1 or node.axes[taps[0]].extent != product.taps:
        return None
    return {row: product.tall, taps[0]: product.taps, **inner}


def intrinsic_extents(dag: Dag, stage: Stage) -> Mapping[int, int]:
    """Return the extents of a stage's intrinsic by the positions of the axes that it covers, outermost first;
    empty without an intrinsic.

    Raises ValueError if the intrinsic doesn't match the node.
    """
    if not stage.intrinsic:
        return {}
    return stage_roles(dag, stage).extents


def stage_roles(dag: Dag, stage: Stage) -> Roles | BlockRoles:
    """Return the roles in a tensorized stage. Raises ValueError if the intrinsic doesn't match the node."""
    node, intrinsic = dag.node[stage.node], intrinsic_of(stage)
    if isinstance(intrinsic, BlockProduct):
        found: Roles | BlockRoles | None = block_roles(dag, node, intrinsic)
    else:
        found = match_roles(dag, node, intrinsic) if intrinsic else None
    if found is None:
        raise ValueError(f"{stage.intrinsic} does not compute {stage.node}")
    return found


def _contiguous_axis(access: BufferAccess) -> int | None:
    if not access.indices:
        return None
    *outer, last = access.indices
    if not last.is_single_axis or not last.terms:
        return None
    axis = last.terms[0].axis
    return None if any(axis in index.axes for index in outer) else axis


def _row_axis(node: Node, rows: BufferAccess, columns: BufferAccess, stride: int) -> int | None:
    """Return the spatial axis whose neighbours are neighbouring rows of the result, and rows of the operand
    that are `stride` apart.
    """
    if min(len(rows.indices), len(node.write.indices)) < 2:
        return None
    written = node.write.indices[-2]
    if not written.is_single_axis or not written.terms:
        return None
    axis = written.terms[0].axis
    steps = [term for index in rows.indices for term in index.terms if term.axis == axis]
    is_next = len(steps) == 1 and steps[0] in rows.indices[-2].terms and steps[0][1:] == (stride, 1)
    return axis if is_next and rows.indices[-2].affine and axis not in columns.axes else None


def _fits(
    dag: Dag,
    node: Node,
    intrinsic: Intrinsic | TileProduct,
    operands: tuple[BufferAccess, BufferAccess],
    axes: tuple[int, int],
) -> bool:
    (rows, columns), (lane, depth) = operands, axes
    source = dag.buffer[columns.buffer]
    return (
        (dag.buffer[rows.buffer].dtype, source.dtype) == (intrinsic.rows, intrinsic.columns)
        and source.role is BufferRole.INPUT
        and (source.narrow or not (isinstance(intrinsic, Intrinsic) and intrinsic.narrow))
        and is_permutation(dag, node, columns)
        and lane not in rows.axes
        and {lane, depth} <= columns.axes
        and node.axes[depth].kind is AxisKind.REDUCTION
        and node.axes[lane].extent % intrinsic.lanes == 0
        and node.axes[depth].extent % intrinsic.depth == 0
    )
