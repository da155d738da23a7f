"""Matrix products of 16 x 16 x 16 that tensor cores compute, and how a node's axes map onto them.

    C[s, i, j] += A[s, i, k] * B[s, j, k]
Every axis of the node belongs to one of the parts; the axes of a part become one, padded to whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.device import Gpu
from search.dag import Access, AxisKind, Dag, Node, extent_of

SIDE = 16
# Types of the operands and of the sums, the compute capability that has them, and how far rows in shared
# memory are moved apart from each other's banks.
TYPES = {("float16", "float32"): 70, ("float16", "float16"): 70, ("int8", "int32"): 72}
BANKS = 32
SKEW = {"float16": 8, "int8": 16}
# Smaller parts would mostly be padding.
MIN_EXTENTS = {"i": 16, "j": 16, "k": 8}


@dataclass(frozen=True)
class MatrixProduct:
    """`parts` has a letter for each axis of the node; `first` and `second` are positions of its reads."""

    parts: str
    first: int
    second: int
    operand: str
    sums: str
    second_by_rows: bool


def match_product(dag: Dag, node: Node, gpu: Gpu) -> MatrixProduct | None:
    """How tensor cores can compute a node; None where they can't."""
    is_dot = node.reducer == "sum" and len(node.reads) == 2 and node.flops == 2
    if not is_dot or node.has_branch or node.extra_writes:
        return None
    types = {dag.buffer[read.buffer].dtype for read in node.reads}
    sums = dag.buffer[node.write.buffer].dtype
    operand = types.pop() if len(types) == 1 else ""
    is_known = (operand, sums) in TYPES and gpu.capability >= TYPES[operand, sums]
    if not is_known or node.reads[0].buffer == node.reads[1].buffer:
        return None
    # What the rows of the result run along belongs to the second operand.
    swapped = node.vector_axis is not None and node.vector_axis not in node.reads[1].axes
    first, second = (1, 0) if swapped else (0, 1)
    parts = "".join(
        _part(node, axis, node.reads[first], node.reads[second]) for axis in range(len(node.axes))
    )
    too_small = any(extent_of(node, axes_of(parts, part)) < least for part, least in MIN_EXTENTS.items())
    if "?" in parts or too_small:
        return None
    return MatrixProduct(parts, first, second, operand, sums, not _sums_rows(node, node.reads[second]))


def _part(node: Node, axis: int, first: Access, second: Access) -> str:
    where = (axis in first.axes, axis in second.axes)
    if node.axes[axis].kind is AxisKind.REDUCTION:
        return "k" if all(where) or node.axes[axis].extent == 1 else "?"
    found = {(True, True): "s", (True, False): "i", (False, True): "j"}.get(where, "?")
    return "s" if found == "?" and node.axes[axis].extent == 1 else found


def axes_of(parts: str, part: str) -> list[int]:
    return [axis for axis, letter in enumerate(parts) if letter == part]


def _sums_rows(node: Node, access: Access) -> bool:
    """Whether the reduction runs along the rows of an operand."""
    return bool(access.indices) and any(axis in node.reduction for axis in access.indices[-1].axes)
