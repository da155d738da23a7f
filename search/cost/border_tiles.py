"""The tiles that touch the border of a padded operand: only these have conditions
(compiler.codegen.interior_tiles).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from search.dag import AxisKind, BufferAccess, Dag, Node
from search.programs.nest import Floats, Nest

# LLVM takes seconds for larger bodies, such as transforms of Winograd, and for two bodies twice as long. So
# tiles with more conditional sums have one body.
MAX_SUMS = 128


def border_share(
    dag: Dag, nest: Nest, read: BufferAccess, is_flat: NDArray[np.bool_], sums: Floats
) -> Floats:
    """Return [programs]: the fraction of the tiles whose loads of an operand have conditions. The tiles are
    the bodies of the loops outside the first reduction level.

    Of each axis with padding, the first and the last tiles touch the border, as many as read padding. Where
    there is one tile, or two, their conditions are constants if the tile's loops are unrolled (`is_flat`,
    [programs]). In loops, the elements of the register tile that read padding have conditions. Along vectors,
    all elements of a tile at the border have them. Conditions of operands that aren't padded count in all
    tiles, and so do those of tiles with too many `sums` [programs].
    """
    everywhere = np.ones(nest.extents.shape[-1])
    padding = padding_of(dag, dag.producer[read.buffer])
    if padding is None:
        return everywhere
    tile, interior = nest.inside[nest.stage.structure.index(AxisKind.REDUCTION)], everywhere
    for index, around in zip(read.indices, padding, strict=True):
        if not any(around):
            continue
        terms = [
            term
            for term in index.terms
            if nest.node.axes[term.axis].kind is AxisKind.SPATIAL and term.divisor == 1
        ]
        spatial = [term.axis for term in terms]
        stride = max((abs(term.coefficient) for term in terms), default=1)
        before, after = (-(-elements // stride) for elements in around)
        size = tile[spatial].prod(axis=0)
        tiles = nest.inside[0][spatial].prod(axis=0) / size
        at_border = np.minimum((-(-before // size) - (-after // size)) / tiles, 1.0)
        ends = np.minimum((before + after) / nest.tile[spatial].prod(axis=0), 1.0)
        if nest.node.vector_axis in spatial:
            interior = interior * (1 - at_border)
        else:
            interior = interior * np.where(tiles > 2, 1 - at_border, np.where(is_flat, 1.0, 1 - ends))
    return np.where(sums > MAX_SUMS, everywhere, 1 - interior)


def padding_of(dag: Dag, node: Node) -> tuple[tuple[int, int], ...] | None:
    """Return the elements before and after each dimension that a node adds to a buffer; None if it isn't a
    padded copy of one."""
    if not node.has_branch or len(node.reads) != 1:
        return None
    (source,) = node.reads
    padded, inside = dag.buffer[node.write.buffer].shape, dag.buffer[source.buffer].shape
    is_moved = all(index.is_single_axis for index in source.indices)
    if not is_moved or len(padded) != len(inside) or math.prod(padded) <= math.prod(inside):
        return None
    return tuple(
        (max(-index.offset, 0), max(outer - inner + index.offset, 0))
        for index, outer, inner in zip(source.indices, padded, inside, strict=True)
    )
