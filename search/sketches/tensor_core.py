"""Match nodes to the matrix products of tensor cores: 16 x 16 x 16, or 16 x 16 x 8 in TF32.

    C[s, i, j] += A[s, i, k] * B[s, j, k]
Every axis of the node belongs to one of the parts s, i, j, k. The axes of a part are fused and padded to
whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.device import Gpu
from core.job import TF32
from search.dag import Axis, AxisKind, BufferAccess, Dag, Node, extent_of

SIDE = 16
TF32_DEPTH = 8
# The lowest compute capability for (operand type, accumulator type). Tensor cores of 7.2 also multiply bytes,
# but CUDA 13 doesn't support them.
TENSOR_SINCE = {
    ("float16", "float32"): 70,
    ("float16", "float16"): 70,
    ("int8", "int32"): 75,
    ("bfloat16", "float32"): 80,
    (TF32, "float32"): 80,
}
# Rows in shared memory are padded, so that consecutive rows start in different BANKS: by SKEW elements if
# `ldmatrix` reads them, otherwise by WIDE_SKEW.
BANKS = 32
SKEW = {"float16": 8, "bfloat16": 8, "int8": 16, TF32: 4}
WIDE_SKEW = 8
# Smaller parts would mostly be padding.
MIN_EXTENTS = {"i": 16, "j": 16, "k": 8}


@dataclass(frozen=True)
class MatrixProduct:
    """A node as a matrix product.

    `parts` has a letter for each axis of the node. `first` and `second` are the positions of A and B among
    its reads. `operand` is the type of the multiplication, and `sums` the type of C.
    """

    parts: str
    first: int
    second: int
    operand: str
    sums: str
    second_by_rows: bool

    @property
    def depth(self) -> int:
        return depth_of(self.operand)

    @property
    def skews(self) -> tuple[int, int]:
        """The elements by which rows of both operands in shared memory are shifted among the banks."""
        skew = SKEW[self.operand]
        return skew, WIDE_SKEW if self.operand == TF32 and self.second_by_rows else skew


def depth_of(operand: str) -> int:
    """Return the extent of k in one tensor-core instruction. The extents of i and j are SIDE."""
    return TF32_DEPTH if operand == TF32 else SIDE


def match_product(dag: Dag, node: Node, gpu: Gpu) -> MatrixProduct | None:
    """Return the node as a matrix product for tensor cores; None if they can't compute it."""
    product = matrix_product(dag, node)
    return product if product is not None and is_on_tensor_cores(product, gpu) else None


def is_on_tensor_cores(product: MatrixProduct, gpu: Gpu) -> bool:
    """Return whether a GPU's tensor cores multiply a product's types."""
    types = product.operand, product.sums
    return types in TENSOR_SINCE and gpu.capability >= TENSOR_SINCE[types]


def matrix_product(dag: Dag, node: Node) -> MatrixProduct | None:
    """Return the node as a matrix product of operands of one type; None if it isn't one."""
    is_dot = node.reducer == "sum" and len(node.reads) == 2 and node.flops == 2
    if not is_dot or node.has_branch or node.extra_writes:
        return None
    types = {dag.buffer[read.buffer].dtype for read in node.reads}
    sums = dag.buffer[node.write.buffer].dtype
    if len(types) > 1 or node.reads[0].buffer == node.reads[1].buffer:
        return None
    operand = node.rounds_to or types.pop()
    # The axes along the result's rows belong to the second operand.
    swapped = node.vector_axis is not None and node.vector_axis not in node.reads[1].axes
    first, second = (1, 0) if swapped else (0, 1)
    is_read = [(a in node.reads[first].axes, a in node.reads[second].axes) for a in range(len(node.axes))]
    parts = "".join(_part(axis, *read) for axis, read in zip(node.axes, is_read, strict=True))
    too_small = any(extent_of(node, axes_of(parts, part)) < least for part, least in MIN_EXTENTS.items())
    if "?" in parts or too_small:
        return None
    return MatrixProduct(parts, first, second, operand, sums, not _sums_rows(node, node.reads[second]))


def _part(axis: Axis, in_first: bool, in_second: bool) -> str:
    """Return the part that an axis belongs to; "?" if none."""
    if axis.kind is AxisKind.REDUCTION:
        return "k" if (in_first and in_second) or axis.extent == 1 else "?"
    if not in_first and not in_second:
        return "s" if axis.extent == 1 else "?"
    return "s" if in_first and in_second else "i" if in_first else "j"


def axes_of(parts: str, part: str) -> list[int]:
    return [axis for axis, letter in enumerate(parts) if letter == part]


def _sums_rows(node: Node, access: BufferAccess) -> bool:
    """Return whether the reduction runs along the rows of an operand."""
    return bool(access.indices) and any(axis in node.reduction for axis in access.indices[-1].axes)
