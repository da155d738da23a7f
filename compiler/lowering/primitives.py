"""Schedule primitives as lowering needs them: loops split, vectors with tails, reads by buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from search.dag import AxisKind, Node


class Primitives:
    """Small steps on one schedule; `vector_bytes` is the device's longest vector, `buffers` are those of the
    workload by their names in the dag."""

    def __init__(self, schedule: Schedule, vector_bytes: int, buffers: Mapping[str, Any]) -> None:
        self.schedule = schedule
        self.vector_bytes = vector_bytes
        # TVM partitions no loop around buffers that share a name: those loops keep their conditions.
        self.can_partition = all(buffer.name == name for name, buffer in buffers.items())
        self._later: list[Callable[[], None]] = []

    def finish(self) -> None:
        """Partitions loops, which takes the names of their blocks away: the last step of lowering."""
        for step in self._later:
            step()

    def extent(self, loop: Any) -> int:
        return int(self.schedule.get(loop).extent)

    def is_fixed(self, loop: Any) -> bool:
        """Whether the loop always has the same extent: parts of quotients that tiles straddle don't."""
        return isinstance(self.schedule.get(loop).extent, tirx.IntImm)

    def split(self, loop: Any, factors: Sequence[int]) -> list[Any]:
        return list(self.schedule.split(loop, [int(factor) for factor in factors]))

    def lanes(self, block: Any) -> int:
        """Elements of the block's result in the device's longest vector."""
        buffer = self.schedule.get(block).writes[0].source
        return self.vector_bytes // max(tvm.DataType(str(buffer.ty.dtype)).bits // 8, 1)

    def unroll_up_to(self, loop: Any, steps: int) -> None:
        """Lets the compiler unroll what is inside `loop` as long as no more than so many steps come of it."""
        if steps:
            self.schedule.annotate(loop, "pragma_auto_unroll_max_step", steps)
            self.schedule.annotate(loop, "pragma_unroll_explicit", 1)

    def vectorize_later(self, block: Any, lanes: int = 0) -> None:
        """The innermost loop in vectors of `lanes`, the device's longest unless told, and what is left of it
        in shorter ones."""
        self._later.append(lambda: self._vectorize(block, lanes or self.lanes(block)))

    def peel_later(self, block: Any, loop: Any, width: int) -> None:
        """The last iteration of `loop` on its own: the innermost loop has only `width` iterations there."""
        if self.can_partition:
            self._later.append(lambda: self._peel(block, loop, width))

    def peel_vectors_later(self, block: Any) -> None:
        """The innermost loop as several whose lengths fill vectors; the compiler makes vectors of them."""
        if self.can_partition:
            self._later.append(lambda: self._peel_vectors(block))

    def _vectorize(self, block: Any, lanes: int) -> None:
        loop = self.schedule.get_loops(block)[-1]
        if not self.is_fixed(loop):
            return
        if not self.can_partition:
            lanes = min(lanes, power_of_two(self.extent(loop)))
        for part in self._partition(loop, vector_parts(self.extent(loop), lanes)):
            extent = self.extent(part)
            length = min(lanes, power_of_two(extent))
            # What is left starts where the full vectors end, and such a loop can't be split.
            inner = part if length == extent else self.split(part, [extent // length, length])[-1]
            if length > 1:
                self.schedule.vectorize(inner)

    def _peel(self, block: Any, loop: Any, width: int) -> None:
        name = f"{self.schedule.get(block).name_hint}_{self.schedule.get(loop).loop_var.name}"
        lanes = self.lanes(block)
        self.schedule.loop_partition(loop, [self.extent(loop) - 1, None])
        innermost = self.schedule.get_loops(self.schedule.get_sblock(f"{name}1"))[-1]
        rest = self.extent(innermost) - width
        self._partition(innermost, [*vector_parts(width, lanes), *([rest] if rest else [])])

    def _peel_vectors(self, block: Any) -> None:
        loop = self.schedule.get_loops(block)[-1]
        self._partition(loop, vector_parts(self.extent(loop), self.lanes(block)))

    def _partition(self, loop: Any, parts: Sequence[int]) -> list[Any]:
        if len(parts) == 1:
            return [loop]
        return list(self.schedule.loop_partition(loop, [*parts[:-1], None]))


def vector_parts(width: int, lanes: int) -> list[int]:
    """Full vectors of `lanes` together, then a power of two for every bit of the rest: 45 -> 32, 8, 4, 1."""
    full = width // lanes * lanes
    bits = [1 << bit for bit in reversed(range(lanes.bit_length())) if (width - full) >> bit & 1]
    return [full, *bits] if full else bits


def power_of_two(number: int) -> int:
    """The largest that divides `number`."""
    return number & -number


def by_level(structure: str, node: Node, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The loops of each tile level, in the order of the axes."""
    seen = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
    levels = []
    for letter in structure:
        kind = AxisKind(letter)
        levels.append([parts[i][seen[kind]] for i, axis in enumerate(node.axes) if axis.kind is kind])
        seen[kind] += 1
    return levels
