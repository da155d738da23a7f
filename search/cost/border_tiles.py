"""The tiles that touch the border of a padded operand: only these have conditions
(compiler.codegen.interior_tiles).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from search.dag import AxisKind, BufferAccess, Dag
from search.programs.nest import Floats, Nest

# LLVM takes seconds for larger bodies, such as transforms of Winograd, and for two bodies twice as long. So
# tiles with more conditional sums have one body.
MAX_SUMS = 128


def border_share(
    dag: Dag, nest: Nest, read: BufferAccess, is_flat: NDArray[np.bool_], sums: Floats
) -> Floats:
    """Return [programs]: the fraction of the tiles whose loads of an operand have conditions. The tiles are
    the bodies of the loops outside the first reduction level.

    Of each axis with padding, the first and the last tile touch the border. Where there is one tile, or two,
    their conditions are constants if the tile's loops are unrolled (`is_flat`, [programs]). In loops, the
    first and the last elements of the register tile have conditions. Conditions of operands that aren't
    padded count in all tiles, and so do those of tiles with too many `sums` [programs].
    """
    everywhere = np.ones(nest.extents.shape[-1])
    producer = dag.producer[read.buffer]
    if not producer.has_branch or len(producer.reads) != 1:
        return everywhere
    source = producer.reads[0]
    padded, inside = dag.buffer[read.buffer].shape, dag.buffer[source.buffer].shape
    is_moved = all(index.is_single_axis for index in source.indices)
    if not is_moved or len(padded) != len(inside) or math.prod(padded) <= math.prod(inside):
        return everywhere
    tile, interior = nest.inside[nest.stage.structure.index(AxisKind.REDUCTION)], everywhere
    for index, outer, inner in zip(read.indices, padded, inside, strict=True):
        if outer == inner:
            continue
        spatial = [axis for axis in index.axes if nest.node.axes[axis].kind is AxisKind.SPATIAL]
        tiles = (nest.inside[0][spatial] / tile[spatial]).prod(axis=0)
        ends = np.minimum(2 / nest.tile[spatial].prod(axis=0), 1.0)
        interior = interior * np.where(tiles > 2, 1 - 2 / tiles, np.where(is_flat, 1.0, 1 - ends))
    return np.where(sums > MAX_SUMS, everywhere, 1 - interior)
