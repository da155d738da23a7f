"""Lower the tiled nodes of CPU programs that use intrinsics, such as dot products of bytes."""

from __future__ import annotations

from typing import Any

from compiler.lowering.cpu.packing_map import PackingMap
from compiler.lowering.cpu.tiles import TileLowering
from compiler.lowering.stage import Lowering, StageLowering
from compiler.lowering.tensor_intrinsics import register
from search.sketches.block_products import BlockProduct
from search.sketches.intrinsics import intrinsic_extents, intrinsic_of, stage_roles
from search.sketches.stage import Stage
from search.sketches.variables import Choice, read_kind


def tile_lowering(lowering: Lowering, stage: Stage) -> StageLowering:
    """Return the lowering of a tiled node, with or without an intrinsic."""
    return (IntrinsicTileLowering if stage.intrinsic else TileLowering)(lowering, stage)


class IntrinsicTileLowering(TileLowering):
    """A tiled node whose innermost loops, over lanes and depth, become an intrinsic. The operand `columns`
    needs the layout that the instruction reads: lanes with a few neighbours along the depth.
    """

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        super().__init__(lowering, stage)
        intrinsic = intrinsic_of(stage)
        assert intrinsic is not None
        self._intrinsic = intrinsic
        self._columns = stage_roles(self.program.sketch.dag, stage).columns
        self._column_copy: Any = None

    def tile(self) -> None:
        super().tile()
        if self._column_copy is not None:
            self._arrange_columns(self._column_copy)

    def fill_registers(self) -> None:
        """Replace the innermost loops by the intrinsic.

            for i3, j3:
                for lane in range(16): for depth in range(4):
                    C[i, j * 16 + lane] += A[i, k * 4 + depth] * B1[j, k, lane, depth]
        ->
            for i3, j3 in T.unroll:
                dot_16x4_vnni(C[i, j * 16 :], A[i, k * 4 :], B1[j, k])
        """
        register(self.stage.intrinsic)
        self._annotate_loops(self.levels[-1])
        block = self.schedule.get_sblock(self.node.name)
        inner = len(intrinsic_extents(self.program.sketch.dag, self.stage))
        outer = self.schedule.blockize(self.schedule.get_loops(block)[-inner])
        init = self.schedule.decompose_reduction(outer, self._first_reduction())
        self.schedule.vectorize(self._loops_inside(init)[-1])
        # The outer block keeps the condition of a partial tile, because an intrinsic's loops can't have one.
        self.schedule.tensorize(self._loops_inside(outer)[0], self.stage.intrinsic)

    def _loops_inside(self, block: Any) -> list[Any]:
        (inner,) = self.schedule.get_child_blocks(block)
        return list(self.schedule.get_loops(inner))

    def _copy(self, block: Any, choice: Choice) -> tuple[Any, int] | None:
        """Copy an operand as in other tiles. `tile` copies the columns if they aren't packed."""
        chosen = str(self.program.choice(self.node.name, choice.kind))
        if chosen == "packed" or choice.kind != read_kind(self._columns):
            return super()._copy(block, choice)
        index = self.primitives.operand(block, self._columns)
        assert index is not None
        self._column_copy = self.schedule.cache_read(block, index, "global")
        return None

    def _arrange_columns(self, copy: Any) -> None:
        """Compute the copy of the columns at the chosen level, in the intrinsic's layout.

            for k, j: B1[k, j] = B[k, j]
        ->
            for k0, j0:
                for j1 in range(16): for k1 in T.unroll(4):
                    B1[j0, k0, j1, k1] = B[k0 * 4 + k1, j0 * 16 + j1]
        """
        level = self.choice(read_kind(self._columns))
        if level:
            target = self.levels[level - 1][-1]
            self.schedule.compute_at(copy, target, preserve_unit_loops=True)
        place = PackingMap.of(self.program, self.stage, self._columns).place
        self.schedule.transform_layout(copy, ("write", 0), place)
        # Split the copy's loops by the extents of the intrinsic, so that it writes contiguously.
        read = next(read for read in self.node.reads if read.buffer == self._columns)
        loops = self.schedule.get_loops(copy)[-len(read.indices) :]
        axes = [index.terms[0].axis if index.terms else -1 for index in read.indices]
        by_axis = dict(zip(axes, loops, strict=True))
        inner = []
        for axis, size in intrinsic_extents(self.program.sketch.dag, self.stage).items():
            if axis in by_axis:
                by_axis[axis], part = self.schedule.split(by_axis[axis], [None, size])
                inner.append(part)
        known = self._intrinsic
        depth = inner[-1]
        if not isinstance(known, BlockProduct) and self.primitives.extent(depth) > known.column_depth:
            *taps, lanes, depth = inner
            groups, depth = self.schedule.split(depth, [None, known.column_depth])
            inner = [*taps, groups, lanes, depth]
        outer = [by_axis[axis] for axis in axes]
        self.schedule.reorder(*outer, *inner)
        self.schedule.unroll(inner[-1])
        if not level:
            self.schedule.parallel(self.schedule.fuse(*outer))
