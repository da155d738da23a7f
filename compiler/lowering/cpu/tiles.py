"""Tiled nodes of CPU programs: loops by level, copies of operands, the register tile, its epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from compiler.constants.packing import PACKING_ANNOTATION
from compiler.lowering.cpu.packing_map import PackingMap
from compiler.lowering.primitives import Primitives, by_level, power_of_two
from search.dag import Node
from search.programs.program import Program
from search.sketches.intrinsics import intrinsic_extents
from search.sketches.predicates import is_arranged
from search.sketches.stage import Stage
from search.sketches.variables import Choice, read_kind


class Tiles:
    """`levels` holds the loops of every tiled node by tile level, once it is tiled."""

    def __init__(self, tools: Primitives, program: Program, buffers: Mapping[str, Any]) -> None:
        self.tools = tools
        self.schedule = tools.schedule
        self.program = program
        self.buffers = buffers
        self.levels: dict[str, list[list[Any]]] = {}

    def tile(self, stage: Stage) -> None:
        """Splits every axis, orders the parts by level and attaches the epilogue and the copies."""
        block = self.schedule.get_sblock(stage.node)
        copies = [self._copy(stage, block, choice) for choice in self._read_choices(stage)]
        epilogue = self.schedule.get_sblock(stage.epilogue) if stage.epilogue else None
        if stage.cache_write:
            epilogue = self.schedule.cache_write(block, 0, "global")
        levels = self._split(stage, block)
        self.levels[stage.node] = levels
        for copy, level in filter(None, copies):
            self.schedule.compute_at(copy, levels[level - 1][-1], preserve_unit_loops=True)
            self.tools.vectorize_later(copy)
        if stage.epilogue_level:
            target = levels[stage.epilogue_level - 1][-1]
            self.schedule.reverse_compute_at(epilogue, target, preserve_unit_loops=True)
            self.tools.vectorize_later(epilogue)

    def annotate(self, stage: Stage) -> None:
        """Parallel outside, the register tile vectorized and unrolled, the accumulators set ahead."""
        node = self._node(stage)
        rows = self.levels[stage.node][-1]
        if node.vector_axis is not None:
            rows = [*rows[:-1], *self._vectorize(stage, rows[-1])]
        self._annotate_loops(stage, rows)
        block = self.schedule.get_sblock(node.name)
        init = self.schedule.decompose_reduction(block, self._first_reduction(stage))
        if node.vector_axis is not None:
            self._peel_tail(stage, block, init, node.vector_axis)

    def _annotate_loops(self, stage: Stage, rows: Sequence[Any]) -> None:
        outermost = self.levels[stage.node][0][0]
        if self.tools.extent(outermost) > 1:
            self.schedule.parallel(outermost)
        self.tools.unroll_up_to(outermost, int(self.program.choice(stage.node, "unroll")))
        # The register tile is unrolled whatever the step says: only then do accumulators stay in registers.
        for loop in rows:
            if self.tools.extent(loop) > 1:
                self.schedule.unroll(loop)

    def _first_reduction(self, stage: Stage) -> Any:
        return self.levels[stage.node][stage.structure.index("R")][0]

    def _split(self, stage: Stage, block: Any) -> list[list[Any]]:
        """The loops of every tile level, the outermost of them fused; an intrinsic's own are inside them."""
        node = self._node(stage)
        reach = intrinsic_extents(self.program.sketch.dag, stage)
        parts, inner = [], {}
        for axis, loop in enumerate(self.schedule.get_loops(block)):
            factors = self.program.factors(node.name, axis)
            loops = self.tools.split(loop, [*factors, *([reach[axis]] if axis in reach else [])])
            parts.append(loops[: len(factors)])
            inner[axis] = loops[len(factors) :]
        levels = by_level(stage.structure, node, parts)
        _put_last(levels[-1], parts, node.vector_axis)
        own = [inner[axis][0] for axis in reach]
        self.schedule.reorder(*(loop for level in levels for loop in level), *own)
        return [[self.schedule.fuse(*levels[0])], *levels[1:]]

    def _node(self, stage: Stage) -> Node:
        return self.program.sketch.dag.node[stage.node]

    def _read_choices(self, stage: Stage) -> list[Choice]:
        buffers = dict.fromkeys(read.buffer for read in self._node(stage).reads)
        found = [self.program.sketch.choice(stage.node, read_kind(buffer)) for buffer in buffers]
        return [choice for choice in found if choice is not None]

    def _copy(self, stage: Stage, block: Any, choice: Choice) -> tuple[Any, int] | None:
        """Packs an operand ahead of time, or copies it: then the copy and the tile level it belongs into."""
        way = str(self.program.choice(stage.node, choice.kind))
        name = choice.kind.removeprefix(read_kind(""))
        index = self._operand(block, name)
        if way == "direct" or index is None:  # an operand that was inlined is read no longer
            return None
        copy = self.schedule.cache_read(block, index, "global")
        if way == "packed" or self._is_arranged(stage, name):
            packing = PackingMap.of(self.program, stage, name)
            zero = 0.0 if "float" in self.program.sketch.dag.buffer[name].dtype else 0
            padding = zero if packing.is_padded else None
            self.schedule.transform_layout(block, ("read", index), packing.place, pad_value=padding)
        if way == "packed":
            self.schedule.annotate(copy, PACKING_ANNOTATION, True)
        elif way == "0":
            self.schedule.parallel(self.schedule.get_loops(copy)[0])
        return (copy, int(way)) if way not in ("packed", "0") else None

    def _is_arranged(self, stage: Stage, buffer: str) -> bool:
        dag, node = self.program.sketch.dag, self._node(stage)
        return any(is_arranged(dag, node, read) for read in node.reads if read.buffer == buffer)

    def _operand(self, block: Any, name: str) -> int | None:
        """Where a buffer stands among those that a block reads."""
        sources = [read.source for read in self.schedule.get(block).reads]
        return next((i for i, s in enumerate(sources) if s.same_as(self.buffers[name])), None)

    def _vectorize(self, stage: Stage, loop: Any) -> list[Any]:
        """Vectorizes the innermost factor and returns the loop that is left; what doesn't fill vectors is
        peeled off later."""
        extent = self.tools.extent(loop)
        length = power_of_two(extent)
        if extent == 1:
            return []
        if length == extent or length < self.tools.lanes(self.schedule.get_sblock(stage.node)):
            self.schedule.vectorize(loop)
            return []
        outer, inner = self.tools.split(loop, [extent // length, length])
        self.schedule.vectorize(inner)
        return [outer]

    def _peel_tail(self, stage: Stage, block: Any, init: Any, axis: int) -> None:
        """Takes the last, partial tile of the vectorized axis, or a width that is no vector, apart."""
        node = self._node(stage)
        factors = self.program.factors(node.name, axis)
        extent, width = node.axes[axis].extent, factors[-1]
        if math.prod(factors) > extent:
            # The loops of the initialization: the outer levels, then the last two spatial ones.
            order = node.spatial.index(axis)
            outer = 1 + len(node.spatial) * (stage.structure.index("R") - 1)
            level = stage.structure.rindex("S", 0, -1)
            self.tools.peel_later(block, self.levels[stage.node][level][order], extent % width)
            self.tools.peel_later(init, self.schedule.get_loops(init)[outer + order], extent % width)
        elif power_of_two(width) < min(width, self.tools.lanes(block)):
            self.tools.peel_vectors_later(block)
            self.tools.peel_vectors_later(init)


def _put_last(level: list[Any], parts: Sequence[Sequence[Any]], axis: int | None) -> None:
    if axis is not None:
        loop = parts[axis][-1]
        level.remove(loop)
        level.append(loop)
