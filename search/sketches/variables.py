"""The variables of a sketch: integers with a few allowed values each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from search.dag import Node, extent_of
from search.sketches.factors import GOOD_VECTORS, Ints, Tail, covers, divisors, tilings
from search.sketches.stage import Rfactor

MAX_INNERMOST = 64
VECTOR_LANES = (1, 4, 8, 16, 32, 64)
# Elements of an operand's row that a transposition reads together: a cache line, or half of one.
ROW_PARTS = (1, 8, 16)


@dataclass(frozen=True)
class Split:
    """The tile factors of one axis, outermost first.

    Their product is `extent`, or a little more if `tail` allows a partial last tile.
    """

    node: str
    axis: int
    extent: int
    parts: int
    tail: Tail = Tail.NONE

    @property
    def key(self) -> tuple[str, str | int]:
        return self.node, self.axis

    @property
    def width(self) -> int:
        return self.parts

    @property
    def table(self) -> Ints:
        """[ways, parts]: the factors from which random programs are drawn."""
        return tilings(self.extent, self.parts, MAX_INNERMOST, self.tail)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Return [count, width] random values."""
        return self.table[rng.integers(len(self.table), size=count)]

    def check(self, values: Sequence[int]) -> None:
        """Raise ValueError if the factors don't cover the extent."""
        if not covers(values, self.extent, self.tail):
            raise ValueError(f"factors {values} of axis {self.axis} must multiply to {self.extent}")


@dataclass(frozen=True)
class Choice:
    """One of several `options`; its value is a position among them. `kind` names what is chosen."""

    kind: str
    node: str
    options: tuple[int | str, ...]

    @property
    def key(self) -> tuple[str, str | int]:
        return self.node, self.kind

    @cached_property
    def numbers(self) -> Ints:
        """[options]: the options, if they are numbers."""
        return np.array(self.options, dtype=np.int64)

    @property
    def width(self) -> int:
        return 1

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Return [count, 1] random positions."""
        return rng.integers(len(self.options), size=(count, 1))

    def check(self, values: Sequence[int]) -> None:
        """Raise ValueError if there is no such option."""
        if not 0 <= values[0] < len(self.options):
            raise ValueError(f"{self.kind} of {self.node} has {len(self.options)} options")


Variable = Split | Choice


def read_kind(buffer: str) -> str:
    """Return the `kind` of the choice of how a tiled node reads a buffer."""
    return f"read {buffer}"


def fetch_kind(buffer: str) -> str:
    """Return the `kind` of the choice of how many values of a buffer a GPU thread fetches at once."""
    return f"lanes {buffer}"


def vector_loops(node: Node) -> tuple[int, ...]:
    """Return the axes that can be fused into one vectorized loop, innermost first.

    They are the result's contiguous axis and, if that is the last axis, the axes around it until their
    product exceeds any vector.
    """
    if node.vector_axis is None:
        return ()
    found = [node.vector_axis]
    outer = node.spatial[:-1] if node.vector_axis == node.spatial[-1] else ()
    for axis in reversed(outer):
        if extent_of(node, found) >= VECTOR_LANES[-1]:
            break
        if node.axes[axis].extent > 1:
            found.append(axis)
    return tuple(found)


def transposed_axis(node: Node) -> int | None:
    """Return the axis along which a nest without a reduction reads rows while it writes across them.

    Return None for other nests, and if the axis can be fused into the vectorized loop.
    """
    if node.reduction or node.vector_axis is None:
        return None
    for read in node.reads:
        if node.vector_axis not in read.axes or not read.indices[-1].is_single_axis:
            continue
        for term in read.indices[-1].terms:
            if term.axis not in vector_loops(node):
                return term.axis
    return None


def rfactor_lanes(node: Node, half: Rfactor) -> tuple[int, ...]:
    """Return the possible sizes of the axis of partial results: divisors of the last reduction axis, if
    possible ones that fill vectors. If they needn't divide, sizes of full vectors.
    """
    extent = node.axes[node.reduction[-1]].extent
    if half is Rfactor.UNEVEN:
        return tuple(lanes for lanes in GOOD_VECTORS if lanes < extent and extent % lanes)
    found = [d for d in divisors(extent) if 1 < d <= MAX_INNERMOST and (half is Rfactor.INNER or d < extent)]
    return tuple([d for d in found if d % 8 == 0] or found)
