"""Lower the tiled nodes of CPU programs: tile levels, copies of operands, register tile, epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compiler.constants.packing import PACKING_ANNOTATION
from compiler.lowering.cpu.packing_map import PackingMap
from compiler.lowering.primitives import by_level, power_of_two, unroll_up_to
from compiler.lowering.stage import StageLowering
from search.sketches.intrinsics import intrinsic_extents
from search.sketches.predicates import is_arranged
from search.sketches.stage import Stage
from search.sketches.variables import Choice, read_kind


class TileLowering(StageLowering):
    """A tiled node. `tile` sets `levels`, its loops by tile level."""

    levels: list[list[Any]]

    def tile(self) -> None:
        """Split every axis, order the loops by tile level, and attach the copies and the epilogue.

            for i, j, k: C[i, j] += A[i, k] * B[k, j]
            for i, j: D[i, j] = C[i, j] + E[j]
        ->                                                  # structure SSRSRS
            for i0_j0, i1, j1:
                for k0:
                    for ...: B1[k, j] = B[k, j]             # a copy at the level of k0
                    for i2, j2, k1, i3, j3: C[i, j] += A[i, k] * B1[k, j]
                for ...: D[i, j] = C[i, j] + E[j]           # the epilogue at the second spatial level
        """
        stage, node = self.stage, self.node
        block = self.schedule.get_sblock(node.name)
        buffers = dict.fromkeys(read.buffer for read in node.reads)
        choices = [self.program.sketch.choice(node.name, read_kind(buffer)) for buffer in buffers]
        copies = [self._copy(block, choice) for choice in choices if choice is not None]
        epilogue = self.schedule.get_sblock(stage.epilogue) if stage.epilogue else None
        if stage.cache_write:
            epilogue = self.schedule.cache_write(block, 0, "global")
        self.copies = [copy for copy in copies if copy is not None]
        if not stage.blocks:
            self.levels = self._split(block)
            self._place_copies()
        if stage.epilogue_level:
            target = self.levels[stage.epilogue_level - 1][-1]
            self.schedule.reverse_compute_at(epilogue, target, preserve_unit_loops=True)
            self.primitives.vectorize_later(epilogue)

    def place(self) -> None:
        """Compute the tiles of a blocked chain inside the loop over the blocks."""
        if self.stage.blocks:
            block = self.schedule.get_sblock(self.node.name)
            self.schedule.compute_at(block, self.block_loop(), preserve_unit_loops=True)
            self.levels = self._split(block)
            self._place_copies()

    def fill_registers(self) -> None:
        """Run the outermost loop in parallel, vectorize and unroll the register tile, and initialize it.

            for i0_j0, i1, j1, k0, i2, j2, k1, i3, j3:
                with T.init(): C[i, j] = 0
                C[i, j] += A[i, k] * B[k, j]
        ->
            for i0_j0 in T.parallel:
                for i1, j1:
                    for i2, j2, i3, j3: C[i, j] = 0
                    for k0, i2, j2, k1:
                        for i3 in T.unroll: for j3 in T.vectorized: C[i, j] += A[i, k] * B[k, j]
        """
        rows, vector_axis = self.levels[-1], self.node.vector_axis
        if vector_axis is not None:
            rows = [*rows[:-1], *self._vectorize(rows[-1])]
        self._annotate_loops(rows)
        block = self.schedule.get_sblock(self.node.name)
        init = self.schedule.decompose_reduction(block, self._first_reduction())
        if vector_axis is not None:
            self._peel_tail(block, init, vector_axis)

    def loop_around(self, inner: Stage) -> Any:
        return self.levels[int(self.program.location(inner.node)) - 1][-1]

    def _place_copies(self) -> None:
        for copy, level in self.copies:
            self.schedule.compute_at(copy, self.levels[level - 1][-1], preserve_unit_loops=True)
            self.primitives.vectorize_later(copy)

    def _annotate_loops(self, rows: Sequence[Any]) -> None:
        """Run the outermost loop in parallel, and unroll the loops of the register tile."""
        outermost = self.levels[0][0]
        if self.primitives.extent(outermost) > 1 and not self.stage.blocks:
            self.schedule.parallel(outermost)
        unroll_up_to(self.schedule, outermost, self.choice("unroll"))
        # The register tile is always unrolled: only then do accumulators stay in registers.
        for loop in rows:
            if self.primitives.extent(loop) > 1:
                self.schedule.unroll(loop)

    def _first_reduction(self) -> Any:
        return self.levels[self.stage.structure.index("R")][0]

    def _split(self, block: Any) -> list[list[Any]]:
        """Split every axis into its tile levels; return the loops by level, the outermost level fused.

            for i, j, k
        ->                                                  # structure SRS
            for i0_j0, k0, i1, j1

        The loops of an intrinsic are also split off, inside all levels. The vectorized axis comes last.
        """
        node = self.node
        intrinsic = intrinsic_extents(self.program.sketch.dag, self.stage)
        parts, inner = [], {}
        for axis, loop in enumerate(self.schedule.get_loops(block)[-len(node.axes) :]):
            factors = self.program.factors(node.name, axis)
            loops = self.primitives.split(loop, [*factors, *([intrinsic[axis]] if axis in intrinsic else [])])
            parts.append(loops[: len(factors)])
            inner[axis] = loops[len(factors) :]
        levels = by_level(self.stage.structure, node, parts)
        if node.vector_axis is not None:
            vector = parts[node.vector_axis][-1]
            levels[-1].remove(vector)
            levels[-1].append(vector)
        own = [inner[axis][0] for axis in intrinsic]
        self.schedule.reorder(*(loop for level in levels for loop in level), *own)
        return [[self.schedule.fuse(*levels[0])], *levels[1:]]

    def _copy(self, block: Any, choice: Choice) -> tuple[Any, int] | None:
        """Pack an operand ahead of time or copy it, as the program chooses.

            for i, j, k: C[i, j] += A[i, k] * B[k, j]
        ->
            for k, j: B1[j // 16, k, j % 16] = B[k, j]      # marked as packing, if it is packed
            for i, j, k: C[i, j] += A[i, k] * B1[j // 16, k, j % 16]

        Returns the copy and the tile level at which it is computed; None if it isn't computed at a level.
        """
        chosen = str(self.program.choice(self.node.name, choice.kind))
        name = choice.kind.removeprefix(read_kind(""))
        index = self.primitives.operand(block, name)
        if chosen == "direct" or index is None:  # an inlined operand is not read by the block
            return None
        copy = self.schedule.cache_read(block, index, "global")
        dag, node = self.program.sketch.dag, self.node
        reads = [read for read in node.reads if read.buffer == name]
        if chosen == "packed" or any(is_arranged(dag, node, read) for read in reads):
            packing = PackingMap.of(self.program, self.stage, name)
            zero = 0.0 if "float" in dag.buffer[name].dtype else 0
            padding = zero if packing.is_padded else None
            self.schedule.transform_layout(block, ("read", index), packing.place, pad_value=padding)
        if chosen == "packed":
            self.schedule.annotate(copy, PACKING_ANNOTATION, True)
            return None
        if chosen == "0":
            self.schedule.parallel(self.schedule.get_loops(copy)[0])
            return None
        return copy, int(chosen)

    def _vectorize(self, loop: Any) -> list[Any]:
        """Vectorize the innermost loop of the register tile; return the remaining loop, to be unrolled.

            for j3 in range(48)
        ->
            for j3 in range(3): for j4 in T.vectorized(16)

        If the largest power of two that divides the extent is less than a vector, the whole loop is
        vectorized; `_peel_tail` handles it.
        """
        extent = self.primitives.extent(loop)
        length = power_of_two(extent)
        if extent == 1:
            return []
        if length == extent or length < self.primitives.lanes(self.schedule.get_sblock(self.node.name)):
            self.schedule.vectorize(loop)
            return []
        outer, inner = self.primitives.split(loop, [extent // length, length])
        self.schedule.vectorize(inner)
        return [outer]

    def _peel_tail(self, block: Any, init: Any, axis: int) -> None:
        """Peel the last, partial tile of the vectorized axis (`Primitives.peel_later`), or partition a width
        that doesn't fill vectors (`Primitives.peel_vectors_later`)."""
        node, structure = self.node, self.stage.structure
        factors = self.program.factors(node.name, axis)
        extent, width = node.axes[axis].extent, factors[-1]
        if math.prod(factors) > extent:
            # The initialization has the loops of the outer levels, then the loops of the last two spatial
            # levels. In blocks, the loop over the blocks is around them.
            order = node.spatial.index(axis)
            outer = 1 + len(node.spatial) * (structure.index("R") - 1) + bool(self.stage.blocks)
            level = structure.rindex("S", 0, -1)
            self.primitives.peel_later(block, self.levels[level][order], extent % width, width)
            self.primitives.peel_later(
                init, self.schedule.get_loops(init)[outer + order], extent % width, width
            )
        elif power_of_two(width) < min(width, self.primitives.lanes(block)):
            self.primitives.peel_vectors_later(block)
            self.primitives.peel_vectors_later(init)
