"""Matrix products of warpgroups: 128 threads multiply 64 rows at a time, by `wgmma` of compute capability
9.0. Devices of other capabilities don't have the instruction, newer ones included.
"""

from __future__ import annotations

import math

from core.device import WARPGROUPS_ON, Device
from search.dag import BufferAccess, Dag, Node, extent_of
from search.sketches.tensor_core import MatrixProduct, axes_of, match_product

# The threads of a warpgroup, and the rows of its tile.
GROUP_THREADS, GROUP_ROWS = 128, 64
# The bytes of a column of a tile in shared memory, copied by threads and by tensor maps.
COLUMN_BYTES, MAP_BYTES = 16, 128
# The types of operands that they multiply, and of the sums.
SUMS = {"float16": "float32", "bfloat16": "float32", "int8": "int32"}
# Types whose right operand may be stored by rows: [k, j].
BY_ROWS = ("float16", "bfloat16")
# Smaller parts would mostly be padding.
MIN_EXTENTS = {"i": 64, "j": 64, "k": 64}
# With fewer results on each multiprocessor, smaller tiles use more of them.
MIN_RESULTS = GROUP_ROWS * 64


def match_warpgroups(dag: Dag, node: Node, device: Device) -> MatrixProduct | None:
    """Return the node as a matrix product; None if warpgroups can't compute it, or if it is too small."""
    if device.gpu is None or device.gpu.capability != WARPGROUPS_ON:
        return None
    found = match_product(dag, node, device.gpu)
    if found is None or found.sums != SUMS.get(found.operand):
        return None
    if found.second_by_rows and found.operand not in BY_ROWS:
        return None
    extents = {part: extent_of(node, axes_of(found.parts, part)) for part in "sijk"}
    too_small = any(extents[part] < least for part, least in MIN_EXTENTS.items())
    results = extents["s"] * extents["i"] * extents["j"]
    return None if too_small or results < MIN_RESULTS * device.cores else found


def operand_matrices(dag: Dag, node: Node, product: MatrixProduct) -> list[tuple[int, int, int]] | None:
    """Return the shapes [images, rows, columns] of both operands as they lie in memory, for tensor maps. None
    if an operand is computed while it is fetched, or lies otherwise.
    """
    orders = "sik", "skj" if product.second_by_rows else "sjk"
    reads = node.reads[product.first], node.reads[product.second]
    shapes = []
    for read, order in zip(reads, orders, strict=True):
        extents = [extent_of(node, axes_of(product.parts, part)) for part in order]
        if not _lies_as(dag, node, read, [axis for part in order for axis in axes_of(product.parts, part)]):
            return None
        if extents[-1] * dag.buffer[read.buffer].item_bytes % COLUMN_BYTES:
            return None
        shapes.append((extents[0], extents[1], extents[2]))
    return shapes


def _lies_as(dag: Dag, node: Node, read: BufferAccess, axes: list[int]) -> bool:
    """Return whether a read buffer isn't computed here, and has exactly these axes of the node, in order."""
    size = math.prod(node.axes[axis].extent for axis in axes)
    if read.buffer in dag.producer or math.prod(dag.buffer[read.buffer].shape) != size:
        return False
    own = []
    for index in read.indices:
        terms = [term for term in index.terms if node.axes[term.axis].extent > 1]
        if not index.affine or index.offset or len(terms) > 1 or any(term[1:] != (1, 1) for term in terms):
            return False
        own += [term.axis for term in terms]
    return own == [axis for axis in axes if node.axes[axis].extent > 1]
