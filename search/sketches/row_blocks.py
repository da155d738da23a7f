"""Chains of nodes that are computed a block of rows at a time.

If nests run one after another, each distributes its loops over the cores in its own way, and half of its data
is in another core's cache. In blocks, a core computes a few rows of the whole chain, and intermediate data
stays in its own cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.sketches.stage import StageKind


@dataclass(frozen=True)
class RowBlocks:
    """A chain that ends at an output.

    kinds: how each node before the output is computed, by name
    rows: the axes that are cut in each node with loops, by name: the last of them into blocks of rows, the
        others, such as the images of a batch, into single iterations
    channels: the axes of the results' channels in these nodes; empty if they don't align
    cuts: the numbers of blocks of rows and of channels that are worth trying
    is_best: whether nests that run one after another aren't worth trying
    """

    kinds: Mapping[str, StageKind]
    rows: Mapping[str, tuple[int, ...]]
    channels: Mapping[str, tuple[int, ...]]
    cuts: tuple[tuple[int, int], ...]
    is_best: bool
