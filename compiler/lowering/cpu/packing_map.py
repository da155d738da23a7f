"""Index maps of packed operands: the layout in which a tiled node's loops read them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from search.dag import AxisKind
from search.programs.program import Program
from search.sketches.intrinsics import Intrinsic, intrinsic_extents, intrinsic_of
from search.sketches.stage import Stage
from search.sketches.tile_products import TileProduct


@dataclass(frozen=True)
class _Part:
    """One factor of a dimension: (index // stride) % factor. The outermost factor needs no modulo."""

    dim: int
    stride: int
    factor: int
    outermost: bool


@dataclass(frozen=True)
class PackingMap:
    """The index of each element in the packed operand. Its dimensions are split and ordered like the loops.

        B[k, j], read by loops j0, k0, j1, k1, j2 with factors (.., 4, 16) of j and (.., 8) of k
    ->
        B1[j // 64, k // 8, j // 16 % 4, k % 8, j % 16]

    `is_padded` tells whether some packed indices hold no element, because a product of factors exceeds the
    extent.
    """

    parts: tuple[_Part, ...]
    is_padded: bool

    @classmethod
    def of(cls, program: Program, stage: Stage, buffer: str) -> PackingMap:
        """Return the map of a `buffer` that the stage's node reads by a permutation of its axes
        (search.sketches.predicates.is_permutation)."""
        node = program.sketch.dag.node[stage.node]
        read = next(read for read in node.reads if read.buffer == buffer)
        axis_of = {dim: index.terms[0].axis for dim, index in enumerate(read.indices) if index.terms}
        dims = sorted(axis_of, key=lambda dim: (axis_of[dim] == node.vector_axis, axis_of[dim]))
        factors = {dim: _all_factors(program, stage, axis) for dim, axis in axis_of.items()}
        intrinsic = intrinsic_extents(program.sketch.dag, stage)
        size = {dim: intrinsic.get(axis, 1) for dim, axis in axis_of.items()}
        parts = []
        seen = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
        for letter in stage.structure:
            kind = AxisKind(letter)
            level = seen[kind]
            parts += [
                _Part(dim, math.prod(factors[dim][level + 1 :]) * size[dim], factors[dim][level], level == 0)
                for dim in dims
                if node.axes[axis_of[dim]].kind is kind
            ]
            seen[kind] += 1
        inner = [
            _Part(dim, 1, size[dim], False) for axis in intrinsic for dim in dims if axis_of[dim] == axis
        ]
        known = intrinsic_of(stage)
        if isinstance(known, Intrinsic | TileProduct) and inner[-1].factor > known.column_depth:
            # Each instruction reads all lanes: the depth is split into groups, which come before the lanes.
            *taps, lanes, depth = inner
            each = known.column_depth
            groups = replace(depth, stride=each, factor=depth.factor // each)
            inner = [*taps, groups, lanes, replace(depth, factor=each)]
        parts += inner
        is_padded = any(
            math.prod(factors[dim]) * size[dim] > node.axes[axis].extent for dim, axis in axis_of.items()
        )
        return cls(tuple(part for part in parts if part.factor > 1), is_padded)

    def place(self, *indices: Any) -> list[Any]:
        """Map the index variables of an element to its packed indices."""
        places = []
        for part in self.parts:
            index = indices[part.dim] // part.stride if part.stride > 1 else indices[part.dim]
            places.append(index if part.outermost else index % part.factor)
        return places or [indices[0]]


def _all_factors(program: Program, stage: Stage, axis: int) -> tuple[int, ...]:
    """Return the tile factors of an axis, blocks of channels among the outermost."""
    outermost, *inner = program.factors(stage.node, axis)
    return (outermost * (stage.channel_blocks if axis in stage.channels else 1), *inner)
