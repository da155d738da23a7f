"""Products of rows of int8 and blocks of packed weights, and how nodes match them.

An intrinsic adds a whole block of the reduction to each of its lanes, in float32:
    sums[lane] += scale * scales[lane] * sum_k rows[k] * (codes[lane, k] - zeros[lane])
The inner sum is exact in int32. It runs over `steps`, two halves of a step, and four neighbours, which one
dot product adds. The halves of a step are the two codes of a byte if a code has four bits, or two bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from core.device import Device
from core.profile import DOT
from search.dag import AxisKind, BufferAccess, Dag, Node
from search.sketches.predicates import is_permutation

HALVES, NEIGHBOURS = 2, 4
# The lanes of an intrinsic, its instructions, and the instruction sets that it needs. Faster ones come first.
_INSTRUCTIONS = (
    (16, "vnni", ("avx512_vnni",)),
    (8, "vnni", ("avx512_vnni", "avx512vl")),
    (8, "vnni", ("avx_vnni",)),
    (8, "avx2", ("avx2",)),
    (4, "sdot", ("asimddp",)),
)
_NAME = re.compile(r"block(8?)_(\d+)x(\d+)_(\d+)_(vnni|avx2|sdot)")


@dataclass(frozen=True)
class BlockProduct:
    """An intrinsic. `points` is the number of zero points: one for each lane, or only one. A code has 4 or 8
    `bits`. `instructions` is a name in _INSTRUCTIONS.
    """

    lanes: int
    steps: int
    points: int
    bits: int
    instructions: str

    @property
    def name(self) -> str:
        prefix = "block" if self.bits == 4 else f"block{self.bits}"
        return f"{prefix}_{self.lanes}x{self.depth}_{self.points}_{self.instructions}"

    @property
    def depth(self) -> int:
        return self.steps * HALVES * NEIGHBOURS

    @property
    def instruction_depth(self) -> int:
        """The depth of a step of the estimate: a whole block."""
        return self.depth

    @property
    def products(self) -> int:
        """The dot products of vectors that it adds to each vector of sums. AVX2 multiplies codes of 8 bits as
        pairs of int16."""
        return self.depth // NEIGHBOURS * (2 if self.rate == DOT + "int16" else 1)

    @property
    def rate(self) -> str:
        """The name of their rate in a profile's `multiply_adds`. AVX2 multiplies codes of 4 bits as narrow
        bytes."""
        if self.instructions != "avx2":
            return "int8"
        return DOT + ("uint8" if self.bits == 4 else "int16")


@dataclass(frozen=True)
class BlockRoles:
    """The extents of an intrinsic by the axes (by position) that it takes, outermost first, and the operand
    `columns`, which needs a special layout."""

    extents: Mapping[int, int]
    columns: str


def block_product(name: str) -> BlockProduct | None:
    """Return the intrinsic of this name; None for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    bits, lanes, depth, points = (int(number or 4) for number in found.groups()[:4])
    return BlockProduct(lanes, depth // (HALVES * NEIGHBOURS), points, bits, found.group(5))


def block_instructions(features: Collection[str], lanes: int) -> tuple[int, str] | None:
    """Return the lanes and the instructions of the best intrinsic for `lanes` sums; None if a device with
    these features has none.
    """
    for count, instructions, needed in _INSTRUCTIONS:
        if set(needed) <= set(features) and lanes % count == 0:
            return count, instructions
    return None


def best_block_product(dag: Dag, node: Node, device: Device) -> BlockProduct | None:
    """Return the device's best intrinsic that matches the node."""
    operands = _operands(dag, node)
    if operands is None or node.vector_axis is None:
        return None
    codes, zeros = operands
    steps = node.axes[codes.indices[1].terms[0].axis].extent
    found = block_instructions(device.features, node.axes[node.vector_axis].extent)
    if found is None:
        return None
    lanes, instructions = found
    return BlockProduct(lanes, steps, lanes if zeros.axes else 1, _bits(codes), instructions)


def block_roles(dag: Dag, node: Node, product: BlockProduct) -> BlockRoles | None:
    """Return the roles of a node's axes and operands; None if the node doesn't match."""
    operands = _operands(dag, node)
    if operands is None:
        return None
    codes, _ = operands
    if _bits(codes) != product.bits:
        return None
    rows = next(read for read in node.reads if dag.buffer[read.buffer].dtype == "int8")
    step, half, neighbour = (index.terms[0].axis for index in rows.indices[-3:])
    lane = codes.indices[-1].terms[0].axis
    extents = {step: product.steps, half: HALVES, lane: product.lanes, neighbour: NEIGHBOURS}
    fits = all(node.axes[axis].extent % extent == 0 for axis, extent in extents.items())
    return BlockRoles(extents, codes.buffer) if fits else None


def _bits(codes: BufferAccess) -> int:
    """Return the bits of a code: the dimensions of bytes have the halves of a step among them."""
    return 4 if len(codes.indices) == 4 else 8


def _operands(dag: Dag, node: Node) -> tuple[BufferAccess, BufferAccess] | None:
    """Return how a node reads codes and zeros, if it computes a product of blocks:

        c[i, j] += s[i, b] * f[b, j] * (q[i, b, p, h, r] * (codes[b, p, r, j] >> 4 * h & 15 - zeros[b, j]))

    with zeros[0, 0] if there is only one, and codes[b, p, h, r, j] if these are bytes.
    """
    if node.reducer != "sum" or len(node.reads) != 5 or node.vector_axis is None:
        return None
    types = [dag.buffer[read.buffer].dtype for read in node.reads]
    if types != ["float32", "float32", "int8", "uint8", "uint8"]:
        return None
    _, scales, rows, codes, zeros = node.reads
    if dag.buffer[node.write.buffer].dtype != "float32" or not is_permutation(dag, node, codes):
        return None
    if (
        len(rows.indices) < 4
        or len(codes.indices) not in (4, 5)
        or not all(one.is_single_axis for one in rows.indices)
    ):
        return None
    if not all(index.terms for index in (*rows.indices[-4:], *codes.indices)):
        return None
    block, step, half, neighbour = (index.terms[0].axis for index in rows.indices[-4:])
    extents = [node.axes[axis].extent for axis in (half, neighbour)]
    halves = [] if _bits(codes) == 4 else [half]
    order = [block, step, *halves, neighbour, node.vector_axis]
    are_codes = [index.terms[0].axis for index in codes.indices] == order
    are_summed = all(node.axes[a].kind is AxisKind.REDUCTION for a in (block, step, half, neighbour))
    are_scaled = scales.axes == {block, node.vector_axis} and zeros.axes in (scales.axes, frozenset())
    return (codes, zeros) if extents == [2, 4] and are_codes and are_summed and are_scaled else None
