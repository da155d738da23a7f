"""Terms that the compiler knows to be zero and omits.

They are between the elements of a dilated operand (transposed convolutions). In unrolled loops, their
condition is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from search.dag import AxisKind, Node
from search.programs.nest import Floats, Nest
from search.sketches.factors import Ints


def remaining_share(nest: Nest, unrolled: Ints) -> Floats:
    """Return [programs]: the fraction of the sum that is computed.

    `unrolled` are the steps of the innermost reduction level that are unrolled. An access at (h + kernel) / d
    reads an element where d divides h + kernel, and zero elsewhere.
    """
    share = np.ones(nest.extents.shape[-1])
    steps, tile = nest.extents[-2], nest.extents[-1]
    all_unrolled = unrolled >= nest.trips(nest.depth - 2)
    for spatial, reduction, divisor in _dilations(nest.node):
        is_known = (tile[spatial] % divisor == 0) & (steps[reduction] % divisor == 0) & all_unrolled
        share = share / np.where(is_known, divisor, 1)
    return share


def _dilations(node: Node) -> Iterator[tuple[int, int, int]]:
    """Yield (spatial axis, reduction axis, divisor) for every quotient of their sum."""
    if not node.has_branch:
        return
    for read in node.reads:
        for index in read.indices:
            divided = [term for term in index.terms if term.divisor > 1]
            kinds = [node.axes[term.axis].kind for term in divided]
            if kinds == [AxisKind.SPATIAL, AxisKind.REDUCTION] and divided[0].divisor == divided[1].divisor:
                yield divided[0].axis, divided[1].axis, divided[0].divisor
