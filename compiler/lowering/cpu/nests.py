"""Nests of CPU programs: by themselves or inside their reader's loops, in vectors or partial results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.lowering.primitives import Primitives, power_of_two
from search.dag import Node
from search.programs.program import Program
from search.sketches.stage import Placement, Rfactor, Stage
from search.sketches.variables import vector_loops


@dataclass
class _Loops:
    """A nest's own loops: spatial ones in the order of the axes, then what it reduces over."""

    spatial: list[Any]
    reduction: list[Any]


@dataclass
class _Partial:
    """The nest of partial results: its block, its loops over results, over steps and over partial results."""

    block: Any
    spatial: list[Any]
    steps: list[Any]
    lanes: Any


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
        self.partial: dict[str, _Partial] = {}

    def is_inlined(self, stage: Stage) -> bool:
        return stage.placement is Placement.NEST and self.program.location(stage.node) == "inline"

    def place(self, stage: Stage) -> None:
        """A nest inside the loops of its reader, or on its own; vectors of partial results right before their
        sum."""
        node = self._node(stage)
        block = self.schedule.get_sblock(stage.node)
        partial = self._rfactor(stage, block) if stage.rfactor else None
        depth = self._depth(stage)
        if depth:
            self.schedule.compute_at(block, self._host_loop(stage, depth), preserve_unit_loops=True)
        if partial is None:
            self.loops[stage.node] = self._own_loops(node, block)
        else:
            self.loops[stage.node] = self._loops_of_sum(node, block, moved=depth > 0)
            self.partial[stage.node] = self._place_partial(stage, partial, depth)

    def annotate(self, stage: Stage) -> None:
        """The innermost loop in vectors, outer loops fused and parallel."""
        own = self.loops[stage.node]
        if stage.rfactor.fills_vectors:
            self._vectorize_partial(stage)
        elif stage.rfactor:
            self._spread_partial(stage)
        else:
            self._vectorize(stage, own)
        if self._depth(stage) == 0:
            self._parallel(stage, own.spatial)

    def decompose(self, stage: Stage) -> None:
        """Sets accumulators ahead of the reductions. TVM makes no loop parallel or a vector after that."""
        own = self.loops[stage.node]
        if own.reduction and (own.spatial or stage.rfactor):
            self.schedule.decompose_reduction(self.schedule.get_sblock(stage.node), own.reduction[0])
        if stage.rfactor:
            self._decompose_partial(stage)

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
        steps = -(-self.tools.extent(last) // lanes)
        is_inner = stage.rfactor.fills_vectors
        outer, inner = self.tools.split(last, [steps, lanes] if is_inner else [lanes, steps])
        return self.schedule.rfactor(inner if is_inner else outer, len(node.spatial))

    def _loops_of_sum(self, node: Node, block: Any, moved: bool) -> _Loops:
        """The loops that add up partial results. TVM puts their axis first where it makes the loops anew."""
        own = self.schedule.get_loops(block)[-len(node.spatial) - 1 :]
        spatial, summed = (own[1:], own[0]) if moved else (own[:-1], own[-1])
        if moved and spatial:
            self.schedule.reorder(*spatial, summed)
        return _Loops(list(spatial), [summed])

    def _place_partial(self, stage: Stage, block: Any, depth: int) -> _Partial:
        """TVM puts the axis of partial results first where it makes the loops anew."""
        node, own = self._node(stage), self.loops[stage.node]
        moves = not stage.rfactor.has_own_nest and bool(own.spatial or depth)
        if moves:
            target = own.spatial[-1] if own.spatial else self._host_loop(stage, depth)
            self.schedule.compute_at(block, target, preserve_unit_loops=True)
        loops = self.schedule.get_loops(block)[-len(node.axes) - 1 :]
        if moves:
            lanes, *rest = loops
            return _Partial(block, rest[: len(node.spatial)], rest[len(node.spatial) :], lanes)
        last = node.reduction[-1]
        step, lanes = loops[last : last + 2] if stage.rfactor.fills_vectors else loops[last : last + 2][::-1]
        steps = [*(loops[axis] for axis in node.reduction[:-1]), step]
        return _Partial(block, [loops[axis] for axis in node.spatial], steps, lanes)

    def _vectorize_partial(self, stage: Stage) -> None:
        """for rows, lanes, steps  ->  for rows, steps: one vector"""
        partial = self.partial[stage.node]
        self.schedule.reorder(*partial.spatial, *partial.steps, partial.lanes)
        self.schedule.vectorize(partial.lanes)
        if stage.rfactor.has_own_nest:
            self._parallel(stage, partial.spatial)

    def _spread_partial(self, stage: Stage) -> None:
        """for rows, lanes, steps  ->  for lanes in parallel, rows, steps"""
        partial = self.partial[stage.node]
        vector = self._split_vector(partial.spatial, *self._inner_loop(stage, partial.spatial))
        self.schedule.reorder(partial.lanes, *partial.spatial, *partial.steps, *vector)
        self.schedule.parallel(partial.lanes)
        for loop in vector:
            self.schedule.vectorize(loop)

    def _decompose_partial(self, stage: Stage) -> None:
        partial = self.partial[stage.node]
        if stage.rfactor is Rfactor.UNEVEN:
            # TVM sets no accumulators ahead under the condition of the last step, but takes that step apart.
            self.schedule.annotate(partial.steps[-1], "pragma_loop_partition_hint", 1)
            return
        init = self.schedule.decompose_reduction(partial.block, partial.steps[0])
        width = self.tools.extent(partial.lanes)
        if stage.rfactor.fills_vectors and power_of_two(width) < min(width, self.tools.lanes(partial.block)):
            self.tools.peel_vectors_later(partial.block)
            self.tools.peel_vectors_later(init)

    def _inner_loop(self, stage: Stage, spatial: list[Any]) -> tuple[int, int]:
        """Where the loop that is contiguous in the result stands, after as many inner loops were fused as the
        program says and as nothing is computed in between; and how many lanes its vectors have."""
        axes = vector_loops(self._node(stage))
        if not axes:
            return 0, 1
        place = self._node(stage).spatial.index(axes[0])
        if len(axes) > 1:
            wanted = axes[int(self.program.choice(stage.node, "fused")) - 1]
            first = max(self._node(stage).spatial.index(wanted), *self._guests(stage))
            loops = spatial[first : place + 1]
            if len(loops) > 1 and all(map(self.tools.is_fixed, loops)):
                spatial[first : place + 1] = [self.schedule.fuse(*loops)]
                place = first
        if not self.tools.is_fixed(spatial[place]):
            return place, 1
        longest = 1 << (self.tools.extent(spatial[place]) - 1).bit_length()
        return place, min(int(self.program.choice(stage.node, "vector")), longest)

    def _split_vector(self, spatial: list[Any], place: int, lanes: int) -> list[Any]:
        """A vector's loop, split off if its length divides the extent; nothing otherwise."""
        extent = self.tools.extent(spatial[place]) if lanes > 1 else 1
        if lanes == 1 or extent % lanes:
            return []
        spatial[place], inner = self.tools.split(spatial[place], [extent // lanes, lanes])
        return [inner]

    def _vectorize(self, stage: Stage, own: _Loops) -> None:
        """Splits vectors off the loops that are contiguous in the result and puts them innermost."""
        place, lanes = self._inner_loop(stage, own.spatial)
        vector = self._split_vector(own.spatial, place, lanes)
        for inner in vector:
            self.schedule.reorder(*own.spatial[place + 1 :], *own.reduction, inner)
            self.schedule.vectorize(inner)
        if lanes > 1 and not vector and not own.reduction:
            loop = own.spatial.pop(place)
            self.schedule.reorder(*own.spatial[place:], loop)
            self.tools.vectorize_later(self.schedule.get_sblock(stage.node), lanes)

    def _guests(self, stage: Stage) -> list[int]:
        """The numbers of the nest's loops inside which others are computed; 0 for none."""
        hosts = self.program.sketch.hosts
        return [
            self._depth(other)
            for other in self.program.sketch.nests
            if other.node in hosts and hosts[other.node].name == stage.node
        ] or [0]

    def _parallel(self, stage: Stage, spatial: list[Any]) -> None:
        """Fuses outer loops and runs them in parallel, as far as nothing else is computed in between."""
        if not spatial:
            return
        inside = [depth for depth in self._guests(stage) if depth]
        count = min([int(self.program.choice(stage.node, "parallel")), len(spatial), *inside])
        if count == 0:
            return
        fused = self.schedule.fuse(*spatial[:count]) if count > 1 else spatial[0]
        self.schedule.parallel(fused)
        self.tools.unroll_up_to(fused, int(self.program.choice(stage.node, "unroll")))
        spatial[:count] = [fused]
