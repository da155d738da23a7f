"""The loops of a tiled node, for every program of a population: extents, touched regions, trips.

The last dimension of every array is programs. A nest has the levels of its structure, outermost first
(`SSRSRS` has six). Boundary b is the point just outside level b: boundary 0 is outside all loops, the last
one inside all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.dag import AxisKind, Buffer, BufferAccess, Index, Node, extent_of
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.intrinsics import intrinsic_extents
from search.sketches.stage import Stage

Floats = NDArray[np.float64]
# Whole numbers, as int64 or float64.
Counts = NDArray[Any]


@dataclass(frozen=True)
class Nest:
    """`extents` [levels, axes, programs] are the iterations of each axis's loop in each level, 1 without a
    loop. The extents of an intrinsic count in the innermost levels of its axes.
    """

    node: Node
    stage: Stage
    extents: Ints

    @classmethod
    def of(cls, population: Population, stage: Stage) -> Nest:
        node = population.sketch.dag.node[stage.node]
        reach = intrinsic_extents(population.sketch.dag, stage)
        extents = np.ones((len(stage.structure), len(node.axes), len(population)), dtype=np.int64)
        for kind in AxisKind:
            levels = [level for level, letter in enumerate(stage.structure) if letter == kind]
            for number, axis in enumerate(node.axes):
                if axis.kind is kind and axis.extent > 1:
                    extents[levels, number] = population.factors(node.name, number).T
                    extents[levels[-1], number] *= reach.get(number, 1)
        if stage.blocks:
            *images, rows = stage.rows
            extents[0, rows] *= stage.blocks
            extents[0, list(stage.channels)] *= stage.channel_blocks
            for number in images:
                extents[0, number] = node.axes[number].extent
        return cls(node, stage, extents)

    @property
    def depth(self) -> int:
        return len(self.extents)

    @property
    def tile(self) -> Ints:
        """[axes, programs]: the innermost level."""
        return np.asarray(self.extents[-1])

    @cached_property
    def inside(self) -> Ints:
        """[boundaries, axes, programs]: the extent of each axis that the loops inside a boundary cover."""
        return products_inside(self.extents)

    @cached_property
    def loops(self) -> tuple[tuple[int, int], ...]:
        """The level and the axis of every loop, outermost first."""
        inner = self.node.vector_axis
        order = [axis for axis in range(len(self.node.axes)) if axis != inner]
        order += [] if inner is None else [inner]
        return tuple(
            (level, axis)
            for level, letter in enumerate(self.stage.structure)
            for axis in (order if level == self.depth - 1 else range(len(order)))
            if self.node.axes[axis].kind == letter and self.node.axes[axis].extent > 1
        )

    def by_loop(self) -> Loops:
        """Return one entry for each loop."""
        # Processors multiply floats faster. Below 2 ** 53 they are exact.
        extents = np.array([self.extents[level, axis] for level, axis in self.loops], dtype=np.float64)
        axes = [axis for _, axis in self.loops]
        return Loops(len(self.node.axes), axes, extents.reshape(len(axes), self.extents.shape[-1]))

    @property
    def chunks(self) -> Ints:
        """[programs]: the iterations of the parallel loop."""
        if not self.stage.blocks:
            return self.trips(0)
        *batch, _ = self.stage.rows
        chunks = self.stage.blocks * self.stage.channel_blocks * extent_of(self.node, batch)
        return np.full(self.extents.shape[-1], chunks)

    def trips(self, level: int) -> Ints:
        """Return [programs]: the iterations of one level's loops together."""
        return np.asarray(self._trips[level])

    @cached_property
    def _trips(self) -> Ints:
        return np.asarray(self.extents.prod(axis=1))


@dataclass(frozen=True)
class Loops:
    """The loops of a nest, outermost first: the axis of each loop, and the `extents` [loops, programs], which
    are whole numbers.

    Boundary b is the point just outside loop b.
    """

    num_axes: int
    axes: Sequence[int]
    extents: Floats

    @cached_property
    def inside(self) -> Floats:
        """[boundaries, axes, programs]: the extent of each axis that the loops inside a boundary cover."""
        inside = np.ones((len(self.axes) + 1, self.num_axes, self.extents.shape[-1]))
        for loop in reversed(range(len(self.axes))):
            inside[loop] = inside[loop + 1]
            inside[loop, self.axes[loop]] *= self.extents[loop]
        return inside

    def visits(self, access: BufferAccess) -> Floats:
        """Return [boundaries, programs]: how often the region that an access touches inside a boundary
        changes.

        Loops right outside the boundary that the access doesn't depend on reuse the region. The iterations of
        the innermost loop outside the boundary on which it depends, and of all loops around that one, count.
        """
        used, visits = access.axes, np.ones((len(self.axes) + 1, self.extents.shape[-1]))
        for loop, axis in enumerate(self.axes):
            moves = self._moves[loop] if axis in used else 1.0
            np.maximum(visits[loop], moves, out=visits[loop + 1])
        return visits

    @cached_property
    def _moves(self) -> Floats:
        """[loops, programs]: the product of the iterations of a loop and of all loops around it; 1 for a loop
        of one iteration, which moves nothing.
        """
        moves = self.extents.copy()
        for outer, inner in pairwise(moves):
            inner *= outer
        return np.where(self.extents > 1, moves, 1.0)


def products_inside(extents: Counts) -> Counts:
    """Return [boundaries, ...]: the product of the extents [loops, ...] inside each boundary."""
    products = np.ones((len(extents) + 1, *extents.shape[1:]), dtype=extents.dtype)
    for loop in reversed(range(len(extents))):
        np.multiply(products[loop + 1], extents[loop], out=products[loop])
    return products


def vector_instructions(width: Ints, lanes: Ints | int) -> Ints:
    """Return the instructions for a row of `width` elements: full vectors, and one for each power of two in
    the rest."""
    return np.asarray(width // lanes + np.bitwise_count(width % lanes))


def region(access: BufferAccess, inner: Counts, shape: Sequence[int]) -> list[Counts]:
    """Return, for each dimension, the elements touched while the axes run over `inner` [..., axes, programs]
    values. A scalar counts as one dimension."""
    return [span(index, inner, size) for index, size in zip(access.indices, shape, strict=True)] or [
        np.ones_like(inner[..., 0, :])
    ]


def span(index: Index, inner: Counts, size: int) -> Counts:
    """Return [..., programs]: the elements of a dimension of `size` elements that an index touches while the
    axes run over `inner` [..., axes, programs] values."""
    if not index.affine:
        return np.full_like(inner[..., 0, :], size)
    if index.is_single_axis and index.terms:  # nearly every index
        return np.minimum(inner[..., index.terms[0].axis, :], size)
    touched = np.ones_like(inner[..., 0, :])
    for axis, coefficient, divisor in index.terms:
        # Tiles start at multiples of their size, so the quotient is constant in a tile shorter than the
        # divisor. Nearly all divisors are 1 and are skipped, because dividing would take most of the time.
        values = inner[..., axis, :]
        quotients = values if divisor == 1 else (values + divisor - 1) // divisor
        touched += abs(coefficient) * (quotients - 1)
    return np.minimum(touched, size)


def elements_of(box: Sequence[Counts]) -> Floats:
    """Return [..., programs]: the elements of a box that `region` returned."""
    return np.asarray(reduce(np.multiply, box[1:], box[0].astype(np.float64)))


def bytes_of_lines(box: Sequence[Counts], item_bytes: Counts | int, line_bytes: int) -> Floats:
    """Return [..., programs]: the bytes of the cache lines of a box, if rows start on lines."""
    *rows, row = box
    return np.asarray(reduce(np.multiply, rows, np.ceil(row * item_bytes / line_bytes) * line_bytes))


def touched_elements(access: BufferAccess, inner: Ints, shape: Sequence[int]) -> Floats:
    """Return [..., programs]: the elements of the box that an access touches."""
    return elements_of(region(access, inner, shape))


def footprint_bytes(access: BufferAccess, inner: Ints, buffer: Buffer, line_bytes: int) -> Floats:
    """Return [..., programs]: the bytes of the cache lines that an access touches, if rows start on lines."""
    return bytes_of_lines(region(access, inner, buffer.shape), buffer.item_bytes, line_bytes)
