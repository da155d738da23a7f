"""Helpers on schedule primitives: splits, vectors with tails, loops by tile level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from search.dag import AxisKind, Node


class Primitives:
    """Schedule primitives on one schedule: TVM's, or one with the same primitives
    (compiler.lowering.cpu.loop_schedule). `vector_bytes` is the device's longest vector; `buffers` maps names
    in the dag to the workload's buffers.
    """

    def __init__(self, schedule: Any, vector_bytes: int, buffers: Mapping[str, Any]) -> None:
        self.schedule = schedule
        self.vector_bytes = vector_bytes
        self._buffers = buffers
        # TVM can't partition loops around buffers that share a name; such loops keep their conditions.
        self.can_partition = all(buffer.name == name for name, buffer in buffers.items())
        self._later: list[Callable[[], None]] = []

    def finish(self) -> None:
        """Apply the `..._later` primitives. They come last, because partitioning renames blocks."""
        for step in self._later:
            step()

    def extent(self, loop: Any) -> int:
        return int(self.schedule.get(loop).extent)

    def is_fixed(self, loop: Any) -> bool:
        """Return whether the loop's extent is constant. If a stage computes quotients of an axis, tiles may
        have different extents.
        """
        return isinstance(self.schedule.get(loop).extent, tirx.IntImm)

    def operand(self, block: Any, name: str) -> int | None:
        """Return the position of a buffer in a block's reads; None if the block doesn't read it."""
        sources = [read.source for read in self.schedule.get(block).reads]
        return next((i for i, s in enumerate(sources) if s.same_as(self._buffers[name])), None)

    def split(self, loop: Any, factors: Sequence[int]) -> list[Any]:
        return list(self.schedule.split(loop, [int(factor) for factor in factors]))

    def lanes(self, block: Any) -> int:
        """Return how many elements of the block's result fit the device's longest vector."""
        buffer = self.schedule.get(block).writes[0].source
        return self.vector_bytes // max(tvm.DataType(str(buffer.ty.dtype)).bits // 8, 1)

    def vectorize_later(self, block: Any, lanes: int = 0) -> None:
        """Vectorize the block's innermost loop by `lanes`, by default the device's longest vector. Vectorize
        the remainder by shorter vectors.

            for j in range(45): B[j] = A[j]
        ->
            for j0 in range(2): for j1 in T.vectorized(16): B[j] = A[j]
            for j in T.vectorized(8): B[j] = A[j]
            for j in T.vectorized(4): B[j] = A[j]
            for j in range(1): B[j] = A[j]
        """
        lanes = lanes or self.lanes(block)

        def vectorize() -> None:
            loop = self.schedule.get_loops(block)[-1]
            if not self.is_fixed(loop):
                return
            most = lanes if self.can_partition else min(lanes, power_of_two(self.extent(loop)))
            for part in self._partition(loop, vector_parts(self.extent(loop), most)):
                extent = self.extent(part)
                length = min(most, power_of_two(extent))
                # A part behind the full vectors can't be split, but its extent is a power of two.
                inner = part if length == extent else self.split(part, [extent // length, length])[-1]
                if length > 1:
                    self.schedule.vectorize(inner)

        self._later.append(vectorize)

    def peel_later(self, block: Any, loop: Any, width: int, tile: int) -> None:
        """Peel the last iteration of `loop`, in which the innermost loop has only `width` iterations.

            for j0 in range(4):
                for j1 in range(16):
                    if j0 * 16 + j1 < 50: C[j0 * 16 + j1] += ...
        ->
            for j0 in range(3):
                for j1 in range(16): C[j0 * 16 + j1] += ...
            for j1 in range(2): C[48 + j1] += ...

        The innermost `tile` iterations may be two loops, over vectors and over lanes. The peeled part has one
        loop.
        """

        def peel() -> None:
            name = f"{self.schedule.get(block).name_hint}_{self.schedule.get(loop).loop_var.name}"
            lanes = self.lanes(block)
            self.schedule.loop_partition(loop, [self.extent(loop) - 1, None])
            *_, outer, innermost = self.schedule.get_loops(self.schedule.get_sblock(f"{name}1"))
            if self.extent(innermost) < tile:
                innermost = self.schedule.fuse(outer, innermost)
            rest = self.extent(innermost) - width
            self._partition(innermost, [*vector_parts(width, lanes), *([rest] if rest else [])])

        if self.can_partition:
            self._later.append(peel)

    def peel_vectors_later(self, block: Any) -> None:
        """Partition the block's innermost loop into loops whose extents LLVM can vectorize.

            for j in range(12): C[j] += ...
        ->
            for j in range(8): C[j] += ...
            for j in range(4): C[8 + j] += ...
        """

        def peel() -> None:
            loop = self.schedule.get_loops(block)[-1]
            self._partition(loop, vector_parts(self.extent(loop), self.lanes(block)))

        if self.can_partition:
            self._later.append(peel)

    def _partition(self, loop: Any, parts: Sequence[int]) -> list[Any]:
        if len(parts) == 1:
            return [loop]
        return list(self.schedule.loop_partition(loop, [*parts[:-1], None]))


def unroll_up_to(schedule: Schedule, loop: Any, steps: int) -> None:
    """Let TVM unroll the loops inside `loop` if that makes at most `steps` steps."""
    if steps:
        schedule.annotate(loop, "pragma_auto_unroll_max_step", steps)
        schedule.annotate(loop, "pragma_unroll_explicit", 1)


def vector_parts(width: int, lanes: int) -> list[int]:
    """Split a width into one part of full vectors, and a power of two for each bit of the remainder.

    45 by 16 lanes -> 32, 8, 4, 1
    """
    full = width // lanes * lanes
    bits = [1 << bit for bit in reversed(range(lanes.bit_length())) if (width - full) >> bit & 1]
    return [full, *bits] if full else bits


def power_of_two(number: int) -> int:
    """Return the largest power of two that divides `number`."""
    return number & -number


def by_level(structure: str, node: Node, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the loops of each tile level in the order of the axes. `parts` are the loops of each axis."""
    seen = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
    levels = []
    for letter in structure:
        kind = AxisKind(letter)
        levels.append([parts[i][seen[kind]] for i, axis in enumerate(node.axes) if axis.kind is kind])
        seen[kind] += 1
    return levels
