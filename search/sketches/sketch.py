"""Sketches: the structure of a program, everything but its numbers (paper section 4.1).

A sketch says of every node whether it is inlined, tiled over several levels, fused into the tile of its
producer, or left as a loop nest. What stays open are integer variables. A program is a sketch with values
for its variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from core.device import Gpu
from search.dag import AxisKind, Dag, Node, extent_of
from search.sketches.factors import GOOD_VECTORS, Tail, divisors
from search.sketches.gpu_variables import gpu_variables
from search.sketches.intrinsics import extents, stage_roles
from search.sketches.location import can_inline, depths, host, readers
from search.sketches.predicates import is_arranged, is_permutation
from search.sketches.stage import Placement, Rfactor, Stage
from search.sketches.variables import MAX_INNERMOST, Choice, Split, Variable

UNROLL_STEPS = (0, 16, 64, 512)
VECTOR_LANES = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Sketch:
    """A structure for every node of `dag`, in the dag's order, and the variables it leaves open. `gpu` is
    what the device allows that it is for; None for CPUs."""

    dag: Dag
    stages: tuple[Stage, ...]
    gpu: Gpu | None = None

    @cached_property
    def key(self) -> str:
        """Names the sketch among the sketches of its dag; stable between processes."""
        return "; ".join(str(stage) for stage in self.stages)

    @cached_property
    def stage(self) -> dict[str, Stage]:
        return {stage.node: stage for stage in self.stages}

    def placed(self, placement: Placement) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.stages if stage.placement is placement)

    @cached_property
    def tiled(self) -> tuple[Stage, ...]:
        return self.placed(Placement.TILED)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        if self.gpu is not None:
            return tuple(gpu_variables(self.dag, self.stages, self.gpu))
        return tuple(variable for stage in self.stages for variable in self._variables_of(stage))

    @cached_property
    def variable(self) -> dict[tuple[str, str | int], Variable]:
        """By its key: (node, axis) of a split, (node, kind) of a choice."""
        return {variable.key: variable for variable in self.variables}

    @cached_property
    def columns(self) -> dict[tuple[str, str | int], slice]:
        """Where a variable's values stand in a program's vector, by its key."""
        found: dict[tuple[str, str | int], slice] = {}
        start = 0
        for variable in self.variables:
            found[variable.key] = slice(start, start + variable.width)
            start += variable.width
        return found

    @cached_property
    def num_columns(self) -> int:
        return sum(variable.width for variable in self.variables)

    @cached_property
    def hosts(self) -> dict[str, Node]:
        """The node inside whose loops each nest that may move can be computed."""
        found = {stage.node: host(self.dag, self.stage, self.dag.node[stage.node]) for stage in self.nests}
        return {name: outer for name, outer in found.items() if outer is not None}

    @cached_property
    def nests(self) -> tuple[Stage, ...]:
        return self.placed(Placement.NEST)

    @cached_property
    def nest_names(self) -> frozenset[str]:
        return frozenset(stage.node for stage in self.nests)

    def choice(self, node: str, kind: str) -> Choice | None:
        found = self.variable.get((node, kind))
        return found if isinstance(found, Choice) else None

    def _variables_of(self, stage: Stage) -> Iterator[Variable]:
        node = self.dag.node[stage.node]
        if stage.placement is Placement.TILED:
            yield from _tile_variables(self.dag, stage, self._settled)
        elif stage.placement is Placement.NEST:
            yield from self._nest_variables(node, stage)
        elif stage.placement is Placement.UNROLLED:
            yield from _unrolled_variables(node, stage.structure)

    @cached_property
    def _settled(self) -> frozenset[str]:
        """The buffers that lie whole in memory whatever the variables say."""
        open_to_move = {
            s.node for s in self.stages if s.placement is Placement.INLINE or s.node in self.hosts
        }
        produced = {write.buffer for name in open_to_move for write in self.dag.node[name].writes}
        return frozenset(self.dag.buffer) - produced

    def _feeds_intrinsic(self, node: Node) -> bool:
        return any(self.stage[reader.name].intrinsic for reader in readers(self.dag, self.stage, node))

    def _nest_variables(self, node: Node, stage: Stage) -> Iterator[Variable]:
        inside = depths(self.dag, self.stage, node)
        inline = ("inline",) if can_inline(self.dag, node) and not self._feeds_intrinsic(node) else ()
        if inside or inline:
            yield Choice("location", node.name, (*inline, "root", *(str(depth) for depth in inside)))
        if stage.rfactor:
            yield Choice("lanes", node.name, rfactor_lanes(node, stage.rfactor))
        loops = vector_loops(node)
        if loops and not stage.rfactor.fills_vectors:
            yield Choice("vector", node.name, _lanes_up_to(extent_of(node, loops)))
            if len(loops) > 1:
                yield Choice("fused", node.name, tuple(range(1, len(loops) + 1)))
        if node.spatial:
            yield Choice("parallel", node.name, _parallel_depths(node))
            yield Choice("unroll", node.name, UNROLL_STEPS)


def _unrolled_variables(node: Node, structure: str) -> Iterator[Variable]:
    for axis in node.spatial:
        if axis not in node.constant_axes and node.axes[axis].extent > 1:
            yield Split(node.name, axis, node.axes[axis].extent, len(structure))


def _tile_variables(dag: Dag, stage: Stage, settled: Collection[str]) -> Iterator[Variable]:
    node, structure = dag.node[stage.node], stage.structure
    reach = extents(dag, stage)
    for position, axis in enumerate(node.axes):
        count = axis.extent // reach.get(position, 1)
        if count > 1:
            tail = Tail.NONE if position in reach else _tail(node, position, structure)
            yield Split(node.name, position, count, structure.count(axis.kind), tail)
    yield Choice("unroll", node.name, UNROLL_STEPS)
    for buffer in dict.fromkeys(read.buffer for read in node.reads if read.buffer in settled):
        if stage.intrinsic and buffer == stage_roles(dag, stage).columns:
            yield Choice(read_kind(buffer), node.name, _ways_to_arrange(dag, buffer, structure))
        elif len(ways := _ways_to_read(dag, node, buffer, structure)) > 1:
            yield Choice(read_kind(buffer), node.name, ways)


def read_kind(buffer: str) -> str:
    """The kind of the choice how a tiled node reads a buffer."""
    return f"read {buffer}"


def _tail(node: Node, axis: int, structure: str) -> Tail:
    """Partial tiles of rows cost little. Those of vectors are peeled off the inner levels, or else every
    lane would be asked whether it exists."""
    if node.axes[axis].kind is AxisKind.REDUCTION or structure.count("R") < 2:
        return Tail.NONE
    return Tail.INNER if axis == node.vector_axis else Tail.ANY


def _ways_to_read(dag: Dag, node: Node, buffer: str, structure: str) -> tuple[str, ...]:
    """As the buffer lies; packed ahead of time in the order of the loops, if it is a constant; or through a
    copy of the part that the loops inside so many tile levels read."""
    reads = [read for read in node.reads if read.buffer == buffer]
    if structure.count("R") < 2 or len(reads) > 1 or not all(index.affine for index in reads[0].indices):
        return ("direct",)
    if dag.buffer[buffer].constant:
        return ("direct", "packed") if is_permutation(dag, node, reads[0]) else ("direct",)
    inner = structure.index("R")
    whole = ("0",) if is_arranged(dag, node, reads[0]) else ()
    return ("direct", *whole, str(inner), str(inner + 1))


def _ways_to_arrange(dag: Dag, buffer: str, structure: str) -> tuple[str, ...]:
    """As an intrinsic reads its columns: packed ahead of time, or copied, at first or part by part."""
    if dag.buffer[buffer].constant:
        return ("packed",)
    inner = structure.index("R")
    return ("0", str(inner), str(inner + 1))


def _lanes_up_to(extent: int) -> tuple[int, ...]:
    return tuple(lanes for lanes in VECTOR_LANES if lanes == 1 or lanes < 2 * extent)


def rfactor_lanes(node: Node, half: Rfactor) -> tuple[int, ...]:
    """Sizes of the axis of partial results: divisors of the last reduction axis, those that fill vectors
    where there are any; full vectors where they needn't divide."""
    extent = node.axes[node.reduction[-1]].extent
    if half is Rfactor.UNEVEN:
        return tuple(lanes for lanes in GOOD_VECTORS if lanes < extent and extent % lanes)
    found = [d for d in divisors(extent) if 1 < d <= MAX_INNERMOST and (half is Rfactor.INNER or d < extent)]
    return tuple([d for d in found if d % 8 == 0] or found)


def vector_loops(node: Node) -> tuple[int, ...]:
    """The axes that may become one vector together, innermost first: the one that is contiguous in the
    result and, if that is the last one, those around it, until they are longer than any vector."""
    if node.vector_axis is None:
        return ()
    found = [node.vector_axis]
    outer = node.spatial[:-1] if node.vector_axis == node.spatial[-1] else ()
    for axis in reversed(outer):
        if extent_of(node, found) >= VECTOR_LANES[-1]:
            break
        if node.axes[axis].extent > 1:
            found.append(axis)
    return tuple(found)


def _parallel_depths(node: Node) -> tuple[int, ...]:
    """How many outer loops run in parallel together: each that makes a difference."""
    extents = [node.axes[axis].extent for axis in node.spatial]
    return (0, *(depth for depth, extent in enumerate(extents, start=1) if extent > 1))
