"""Nests of CPU programs: by themselves or inside their reader's loops, in vectors or partial results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.primitives import Primitives, power_of_two
from search.dag import Node
from search.program import Program
from search.stage import Placement, Rfactor, Stage


@dataclass
class _Loops:
    """A nest's own loops: spatial ones in the order of the axes, then what it reduces over."""

    spatial: list[Any]
    reduction: list[Any]


class Nests:
    """`levels` are the loops of tiled nodes, inside which nests may be computed."""

    def __init__(
        self, tools: Primitives, program: Program, levels: Mapping[str, Sequence[Sequence[Any]]]
    ) -> None:
        self.tools = tools
        self.schedule = tools.schedule
        self.program = program
        self.levels = levels
        self.loops: dict[str, _Loops] = {}
        # Of nests that are factored: the block of partial results, its first reduction, how many they are.
        self.partial: dict[str, tuple[Any, Any, int]] = {}

    def is_inlined(self, stage: Stage) -> bool:
        return stage.placement is Placement.NEST and self.program.location(stage.node) == "inline"

    def place(self, stage: Stage) -> None:
        """A nest inside the loops of its reader, or on its own; partial results right before their sum."""
        node = self._node(stage)
        block = self.schedule.get_sblock(stage.node)
        if stage.rfactor:
            self.partial[stage.node] = self._rfactor(stage, block), None, 1
        depth = self._depth(stage)
        if depth:
            self.schedule.compute_at(block, self._host_loop(stage, depth), preserve_unit_loops=True)
        if stage.rfactor:
            self.loops[stage.node] = self._loops_of_sum(node, block, moved=depth > 0)
            self._place_partial(stage, depth)
        else:
            self.loops[stage.node] = self._own_loops(node, block)

    def annotate(self, stage: Stage) -> None:
        """The innermost loop in vectors, outer loops fused and parallel."""
        node = self._node(stage)
        own = self.loops[stage.node]
        if stage.rfactor:
            self._order_partial(stage)
        elif node.vector_axis is not None:
            self._vectorize(stage, self.schedule.get_sblock(stage.node), own)
        if self._depth(stage) == 0 and own.spatial:
            self._parallel(stage, own)

    def decompose(self, stage: Stage) -> None:
        """Sets accumulators ahead of the reductions. TVM makes no loop parallel or a vector after that."""
        own = self.loops[stage.node]
        if own.reduction and (own.spatial or stage.rfactor):
            self.schedule.decompose_reduction(self.schedule.get_sblock(stage.node), own.reduction[0])
        if stage.node in self.partial:
            block, first, width = self.partial[stage.node]
            init = self.schedule.decompose_reduction(block, first)
            if width > 1 and power_of_two(width) < min(width, self.tools.lanes(block)):
                self.tools.peel_vectors_later(block)
                self.tools.peel_vectors_later(init)

    def unroll_constants(self, stage: Stage) -> None:
        """The free axes in two levels, the outer one parallel, around unrolled loops over constants."""
        node = self._node(stage)
        block = self.schedule.get_sblock(stage.node)
        loops = self.schedule.get_loops(block)
        free = [axis for axis in node.spatial if axis not in node.constant_axes]
        parts = {axis: self.tools.split(loops[axis], self.program.factors(node.name, axis)) for axis in free}
        outer = [parts[axis][0] for axis in free]
        inner = [parts[axis][1] for axis in free if axis != node.vector_axis]
        unrolled = [loops[axis] for axis in (*node.spatial, *node.reduction) if axis not in free]
        vector = [parts[node.vector_axis][1]] if node.vector_axis in parts else []
        self.schedule.reorder(*outer, *inner, *unrolled, *vector)
        for loop in unrolled:
            self.schedule.unroll(loop)
        for loop in vector:
            length = power_of_two(self.tools.extent(loop))
            self.schedule.vectorize(self.tools.split(loop, [self.tools.extent(loop) // length, length])[-1])
        if outer:
            self.schedule.parallel(self.schedule.fuse(*outer))
        if node.reduction:
            self.schedule.decompose_reduction(block, loops[node.reduction[0]])

    def _node(self, stage: Stage) -> Node:
        return self.program.sketch.dag.node[stage.node]

    def _depth(self, stage: Stage) -> int:
        location = self.program.location(stage.node)
        return int(location) if location.isdigit() else 0

    def _host_loop(self, stage: Stage, depth: int) -> Any:
        host = self.program.sketch.hosts[stage.node].name
        return (
            self.levels[host][depth - 1][-1] if host in self.levels else self.loops[host].spatial[depth - 1]
        )

    def _own_loops(self, node: Node, block: Any) -> _Loops:
        own = self.schedule.get_loops(block)[-len(node.axes) :] if node.axes else []
        loops = _Loops([own[axis] for axis in node.spatial], [own[axis] for axis in node.reduction])
        if loops.spatial and loops.reduction:
            self.schedule.reorder(*loops.spatial, *loops.reduction)
        return loops

    def _rfactor(self, stage: Stage, block: Any) -> Any:
        """Splits the last reduction loop and makes one half an axis of partial results, their last one."""
        node = self._node(stage)
        lanes = int(self.program.choice(stage.node, "lanes"))
        last = self.schedule.get_loops(block)[node.reduction[-1]]
        steps = self.tools.extent(last) // lanes
        is_inner = stage.rfactor is Rfactor.INNER
        outer, inner = self.tools.split(last, [steps, lanes] if is_inner else [lanes, steps])
        return self.schedule.rfactor(inner if is_inner else outer, len(node.spatial))

    def _loops_of_sum(self, node: Node, block: Any, moved: bool) -> _Loops:
        """The loops that add up partial results. TVM puts their axis first where it makes the loops anew."""
        own = self.schedule.get_loops(block)[-len(node.spatial) - 1 :]
        spatial, summed = (own[1:], own[0]) if moved else (own[:-1], own[-1])
        if moved and spatial:
            self.schedule.reorder(*spatial, summed)
        return _Loops(list(spatial), [summed])

    def _place_partial(self, stage: Stage, depth: int) -> None:
        """Vectors of partial results are computed where they are summed up, chunks for all cores before."""
        own = self.loops[stage.node]
        if stage.rfactor is Rfactor.INNER and (own.spatial or depth):
            target = own.spatial[-1] if own.spatial else self._host_loop(stage, depth)
            self.schedule.compute_at(self.partial[stage.node][0], target, preserve_unit_loops=True)

    def _order_partial(self, stage: Stage) -> None:
        """for rows, lanes, steps  ->  for rows, steps: one vector, or for lanes in parallel, rows, steps"""
        node = self._node(stage)
        block, _, _ = self.partial[stage.node]
        own = self.loops[stage.node]
        is_moved = stage.rfactor is Rfactor.INNER and bool(own.spatial or self._depth(stage))
        loops = self.schedule.get_loops(block)[-len(node.axes) - 1 :]
        if is_moved:  # the axis of partial results, then the node's own
            lanes, spatial, steps = loops[0], loops[1 : 1 + len(node.spatial)], loops[1 + len(node.spatial) :]
        else:
            spatial = [loops[axis] for axis in node.spatial]
            halves = loops[node.reduction[-1]], loops[node.reduction[-1] + 1]
            lanes, last = halves[::-1] if stage.rfactor is Rfactor.INNER else halves
            steps = [*(loops[axis] for axis in node.reduction[:-1]), last]
        if stage.rfactor is Rfactor.INNER:
            self.schedule.reorder(*spatial, *steps, lanes)
            self.schedule.vectorize(lanes)
        else:
            vector = self._split_vector(stage, spatial)
            self.schedule.reorder(lanes, *spatial, *steps, *vector)
            self.schedule.parallel(lanes)
            for loop in vector:
                self.schedule.vectorize(loop)
        width = self.tools.extent(lanes) if stage.rfactor is Rfactor.INNER else 1
        self.partial[stage.node] = block, steps[0], width

    def _split_vector(self, stage: Stage, spatial: list[Any]) -> list[Any]:
        """Splits a vector off the axis that is contiguous in the result, if its length divides it."""
        axis = self._node(stage).vector_axis
        if axis is None:
            return []
        place = self._node(stage).spatial.index(axis)
        extent, lanes = self.tools.extent(spatial[place]), int(self.program.choice(stage.node, "vector"))
        if lanes == 1 or extent % lanes:
            return []
        spatial[place], inner = self.tools.split(spatial[place], [extent // lanes, lanes])
        return [inner]

    def _vectorize(self, stage: Stage, block: Any, own: _Loops) -> None:
        """Splits vectors off the axis that is contiguous in the result and puts them innermost."""
        node = self._node(stage)
        assert node.vector_axis is not None
        place = node.spatial.index(node.vector_axis)
        loop, lanes = own.spatial[place], int(self.program.choice(stage.node, "vector"))
        if not self.tools.is_fixed(loop):
            return
        extent = self.tools.extent(loop)
        lanes = min(lanes, 1 << (extent - 1).bit_length())
        if lanes == 1:
            return
        if extent % lanes == 0:
            own.spatial[place], inner = self.tools.split(loop, [extent // lanes, lanes])
            self.schedule.reorder(*own.spatial[place + 1 :], *own.reduction, inner)
            self.schedule.vectorize(inner)
        elif not own.reduction:
            self.schedule.reorder(*own.spatial[place + 1 :], loop)
            del own.spatial[place]
            self.tools.vectorize_later(block, lanes)

    def _parallel(self, stage: Stage, own: _Loops) -> None:
        """Fuses outer loops and runs them in parallel, as far as nothing else is computed in between."""
        guests = [
            self._depth(other)
            for other in self.program.sketch.nests
            if (host := self.program.sketch.hosts.get(other.node)) and host.name == stage.node
        ]
        inside = [depth for depth in guests if depth]
        count = min([int(self.program.choice(stage.node, "parallel")), len(own.spatial), *inside])
        if count == 0:
            return
        fused = self.schedule.fuse(*own.spatial[:count]) if count > 1 else own.spatial[0]
        self.schedule.parallel(fused)
        self.tools.unroll_up_to(fused, int(self.program.choice(stage.node, "unroll")))
        own.spatial[:count] = [fused]
