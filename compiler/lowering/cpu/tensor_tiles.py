"""Tiled nodes whose innermost tiles are instructions: their operands arranged, their loops tensorized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.lowering.cpu.packing_map import PackingMap
from compiler.lowering.cpu.tiles import Tiles
from compiler.lowering.primitives import Primitives
from compiler.lowering.tensor_intrinsics import register
from search.programs.program import Program
from search.sketches.intrinsics import Roles, intrinsic_extents, stage_roles
from search.sketches.stage import Stage
from search.sketches.variables import Choice, read_kind


class TensorTiles(Tiles):
    """Tiles of both kinds. The loops of an intrinsic, lanes and depth, are inside all tile levels."""

    def __init__(self, tools: Primitives, program: Program, buffers: Mapping[str, Any]) -> None:
        super().__init__(tools, program, buffers)
        self._columns: dict[str, Any] = {}

    def tile(self, stage: Stage) -> None:
        super().tile(stage)
        if stage.node in self._columns:
            self._arrange(stage, self._columns[stage.node])

    def annotate(self, stage: Stage) -> None:
        """As other tiles, but the instruction in the place of vectors."""
        if not stage.intrinsic:
            super().annotate(stage)
            return
        register(stage.intrinsic)
        self._annotate_loops(stage, self.levels[stage.node][-1])
        block = self.schedule.get_sblock(stage.node)
        lanes = self.schedule.get_loops(block)[-2]
        whole = self.schedule.blockize(lanes)
        init = self.schedule.decompose_reduction(whole, self._first_reduction(stage))
        self.schedule.vectorize(self._loops_inside(init)[-1])
        # The block around keeps the condition of a partial tile, which an instruction has none of.
        self.schedule.tensorize(self._loops_inside(whole)[0], stage.intrinsic)

    def _loops_inside(self, block: Any) -> list[Any]:
        (inner,) = self.schedule.get_child_blocks(block)
        return list(self.schedule.get_loops(inner))

    def _copy(self, stage: Stage, block: Any, choice: Choice) -> tuple[Any, int] | None:
        way = str(self.program.choice(stage.node, choice.kind))
        if not stage.intrinsic or way == "packed" or choice.kind != read_kind(self._roles(stage).columns):
            return super()._copy(stage, block, choice)
        index = self._operand(block, self._roles(stage).columns)
        assert index is not None
        self._columns[stage.node] = self.schedule.cache_read(block, index, "global")
        return None

    def _arrange(self, stage: Stage, copy: Any) -> None:
        """Computes the copy of the columns where it is wanted, laid out as the instructions read it."""
        columns = self._roles(stage).columns
        level = int(self.program.choice(stage.node, read_kind(columns)))
        if level:
            target = self.levels[stage.node][level - 1][-1]
            self.schedule.compute_at(copy, target, preserve_unit_loops=True)
        place = PackingMap.of(self.program, stage, columns).place
        self.schedule.transform_layout(copy, ("write", 0), place)
        loops = self._by_instruction(stage, copy)
        if not level:
            self.schedule.parallel(self.schedule.fuse(*loops))

    def _by_instruction(self, stage: Stage, copy: Any) -> list[Any]:
        """Splits the loops of a copy by the instruction's extents, so that they write along it; the outer
        ones."""
        node = self._node(stage)
        read = next(read for read in node.reads if read.buffer == self._roles(stage).columns)
        loops = self.schedule.get_loops(copy)[-len(read.indices) :]
        axes = [index.terms[0].axis if index.terms else -1 for index in read.indices]
        by_axis = dict(zip(axes, loops, strict=True))
        reach = intrinsic_extents(self.program.sketch.dag, stage)
        inner = []
        for axis, size in reach.items():
            by_axis[axis], part = self.schedule.split(by_axis[axis], [None, size])
            inner.append(part)
        outer = [by_axis[axis] for axis in axes]
        self.schedule.reorder(*outer, *inner)
        self.schedule.unroll(inner[-1])
        return outer

    def _roles(self, stage: Stage) -> Roles:
        return stage_roles(self.program.sketch.dag, stage)
