"""The loops of a tiled node, for every program of a population: extents, touched regions, trips.

The last dimension of every array is programs. A nest has the levels of its structure, outermost first
(`SSRSRS` has six). Boundary b is the point just outside level b: boundary 0 is outside all loops, the last
one inside all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.dag import Access, AxisKind, Buffer, Node, extent_of
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.intrinsics import intrinsic_extents
from search.sketches.stage import Stage

Floats = NDArray[np.float64]


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
        outward = np.cumprod(self.extents[::-1], axis=0)
        return np.concatenate([outward[::-1], np.ones_like(self.extents[:1])])

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

    def by_loop(self) -> Nest:
        """Return the same nest with a level for every loop."""
        extents = np.ones((len(self.loops), *self.extents.shape[1:]), dtype=np.int64)
        for number, (level, axis) in enumerate(self.loops):
            extents[number, axis] = self.extents[level, axis]
        return replace(self, extents=extents)

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
        return np.asarray(self.extents[level].prod(axis=0))

    def visits(self, access: Access) -> Ints:
        """Return [boundaries, programs]: how often the region that an access touches inside a boundary
        changes.

        Loops right outside the boundary that the access doesn't depend on reuse the region. The iterations of
        the innermost loop outside the boundary on which it depends, and of all loops around that one, count.
        """
        used = sorted(access.axes)
        moves = np.where(self.extents[:, used] > 1, self._iterations[:, used], 1)
        changes = np.ones((self.depth + 1, self.extents.shape[-1]), dtype=np.int64)
        changes[1:] = moves.max(axis=1, initial=1)
        return np.asarray(np.maximum.accumulate(changes, axis=0))

    @cached_property
    def _iterations(self) -> Ints:
        """[levels, axes, programs]: the product of the iterations of a loop and of its outer loops."""
        levels, axes, programs = self.extents.shape
        flat = self.extents.reshape(levels * axes, programs)
        return np.cumprod(flat, axis=0).reshape(self.extents.shape)


def vector_instructions(width: Ints, lanes: Ints | int) -> Ints:
    """Return the instructions for a row of `width` elements: full vectors, and one for each power of two in
    the rest."""
    rest = width % lanes
    bits = (rest[..., None] >> np.arange(int(np.max(lanes, initial=1)).bit_length())) & 1
    return np.asarray(width // lanes + bits.sum(axis=-1))


def region(access: Access, inner: Ints, shape: Sequence[int]) -> list[Ints]:
    """Return, for each dimension, the elements touched while the axes run over `inner` [..., axes, programs]
    values."""
    touched = []
    for index, size in zip(access.indices, shape, strict=True):
        span = np.ones((*inner.shape[:-2], inner.shape[-1]), dtype=np.int64)
        for axis, coefficient, divisor in index.terms:
            # Tiles start at multiples of their size, so the quotient is constant in a tile shorter than the
            # divisor. Nearly all divisors are 1 and are skipped, because dividing would take most of the
            # time.
            values = inner[..., axis, :]
            quotients = values if divisor == 1 else (values + divisor - 1) // divisor
            span += abs(coefficient) * (quotients - 1)
        touched.append(np.minimum(span, size) if index.affine else np.full_like(span, size))
    return touched


def touched_elements(access: Access, inner: Ints, shape: Sequence[int]) -> Floats:
    """Return [..., programs]: the elements of the box that an access touches."""
    return np.asarray(np.multiply.reduce(region(access, inner, shape), dtype=np.float64))


def footprint_bytes(access: Access, inner: Ints, buffer: Buffer, line_bytes: int) -> Floats:
    """Return [..., programs]: the bytes of the cache lines that an access touches, if rows start on lines."""
    *rows, row = region(access, inner, buffer.shape) or [np.ones_like(inner[..., 0, :])]
    lines = np.ceil(row * buffer.item_bytes / line_bytes)
    return np.asarray(np.multiply.reduce([lines * line_bytes, *rows]))
