"""The loops of a tiled node over a whole population: extents, touched regions, trips.

Everything here is an array over programs. A nest has levels, outermost first, as its structure says
(`SSRSRS` has six); boundary b is the point just outside level b, so boundary 0 is outside all loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.dag import Access, Axis, AxisKind, Buffer, Node
from search.factors import Ints
from search.program import Population
from search.sketch import Stage

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Nest:
    """`extents[b][a]`: trips of axis a's loop in level b, each [programs]; ones where it has none."""

    node: Node
    stage: Stage
    extents: tuple[tuple[Ints, ...], ...]

    @classmethod
    def of(cls, population: Population, stage: Stage) -> Nest:
        node = population.sketch.dag.node[stage.node]
        factors = [population.factors(node.name, axis) for axis in range(len(node.axes))]
        ones = np.ones(len(population), dtype=np.int64)
        seen = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
        levels = []
        for letter in stage.structure:
            kind = AxisKind(letter)
            levels.append(_level(node.axes, factors, kind, seen[kind], ones))
            seen[kind] += 1
        return cls(node, stage, tuple(levels))

    @property
    def depth(self) -> int:
        return len(self.extents)

    def inside(self, boundary: int) -> tuple[Ints, ...]:
        """How much of each axis the loops inside a boundary cover."""
        inner = [np.ones_like(extent) for extent in self.extents[0]]
        for level in self.extents[boundary:]:
            inner = [total * extent for total, extent in zip(inner, level, strict=True)]
        return tuple(inner)

    def trips(self, level: int) -> Ints:
        """Iterations of one level's loops together."""
        return product(self.extents[level], len(self.extents[0][0]))

    def visits(self, access: Access, boundary: int) -> Ints:
        """How often the region that an access touches inside a boundary changes.

        Loops right outside the boundary that don't move the access reuse what is there.
        """
        used = {axis for index in access.indices for axis, _ in index.terms}
        total = np.ones_like(self.extents[0][0])
        moved = np.zeros(len(total), dtype=bool)
        for level in reversed(self.extents[:boundary]):
            for axis in reversed(range(len(level))):
                extent = level[axis]
                if axis in used:
                    moved = moved | (extent > 1)
                    total = total * extent
                else:
                    total = total * np.where(moved, extent, 1)
        return total

    def vector_axis(self) -> int | None:
        """The axis whose innermost factor becomes a vector: the one that is contiguous in the result."""
        last = self.node.write.indices[-1] if self.node.write.indices else None
        if last is None or not last.is_single_axis or not last.terms:
            return None
        return last.terms[0][0]


def vector_length(width: Ints) -> Ints:
    """The longest power of two that divides the innermost factor: compilers choke on other vectors."""
    return np.asarray(width & -width)


def region(access: Access, inner: Sequence[Ints], shape: Sequence[int]) -> list[Ints]:
    """Elements touched in each dimension while every axis a runs over inner[a] values."""
    touched = []
    for index, size in zip(access.indices, shape, strict=True):
        if not index.affine:
            touched.append(np.full_like(inner[0], size))
            continue
        span = np.ones_like(inner[0])
        for axis, coefficient in index.terms:
            span = span + abs(coefficient) * (inner[axis] - 1)
        touched.append(np.minimum(span, size))
    return touched


def footprint_bytes(access: Access, inner: Sequence[Ints], buffer: Buffer, line_bytes: int) -> Floats:
    """Bytes of the cache lines that an access touches (rows are taken to start on a line)."""
    touched = region(access, inner, buffer.shape)
    if not touched:
        return np.full(len(inner[0]), float(buffer.item_bytes))
    row_bytes = np.ceil(touched[-1] * buffer.item_bytes / line_bytes) * line_bytes
    return row_bytes * product(touched[:-1], len(row_bytes))


def product(arrays: Sequence[Ints], length: int) -> Ints:
    total = np.ones(length, dtype=np.int64)
    for array in arrays:
        total = total * array
    return total


def _level(
    axes: Sequence[Axis], factors: Sequence[Ints], kind: AxisKind, number: int, ones: Ints
) -> tuple[Ints, ...]:
    return tuple(factors[axis][:, number] if axes[axis].kind is kind else ones for axis in range(len(axes)))
