"""The kinds of stages of CPU programs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from search.cost.analytic_nest import block_seconds, nest_terms, unrolled_seconds
from search.cost.analytic_tile import tile_terms
from search.cost.cost_parameters import CostParameters
from search.cost.estimate import Estimate, estimate_stage
from search.dag import AxisKind, Dag, Node, extent_of
from search.programs.code_size import nest_compiles_quickly, tile_compiles_quickly
from search.programs.compute_location import encloses_readers
from search.programs.nest import Nest
from search.programs.program import Population
from search.programs.validity import is_valid
from search.sketches.factors import Tail
from search.sketches.intrinsics import intrinsic_extents, stage_roles
from search.sketches.location import can_inline, possible_depths, readers
from search.sketches.predicates import is_arranged, is_permutation
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage, StageKind
from search.sketches.variables import (
    ROW_PARTS,
    VECTOR_LANES,
    Choice,
    Split,
    Variable,
    read_kind,
    rfactor_lanes,
    transposed_axis,
    vector_loops,
)

UNROLL_STEPS = (0, 16, 64, 512)


class Tiled(Stage):
    """A node tiled over several levels, with the innermost tile in registers."""

    kind = StageKind.TILED

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        dag, node = sketch.dag, sketch.dag.node[self.node]
        reach = intrinsic_extents(dag, self)
        for position, axis in enumerate(node.axes):
            count = extent_in_block(node, self, position) // reach.get(position, 1)
            if count > 1:
                tail = Tail.NONE if position in reach else self._tail(node, position)
                yield Split(node.name, position, count, self.structure.count(axis.kind), tail)
        yield Choice("unroll", node.name, UNROLL_STEPS)
        in_memory = (read.buffer for read in node.reads if read.buffer in sketch.materialized)
        for buffer in dict.fromkeys(in_memory):
            if self.intrinsic and buffer == stage_roles(dag, self).columns:
                yield Choice(read_kind(buffer), node.name, self._ways_to_arrange(dag, buffer))
            elif len(ways := self._ways_to_read(dag, node, buffer)) > 1:
                yield Choice(read_kind(buffer), node.name, ways)

    def __str__(self) -> str:
        cache = " in a write cache" if self.cache_write else ""
        fused = f", {self.epilogue or 'copy'} at {self.epilogue_level}" if self.epilogue_level else ""
        intrinsic = f" of {self.intrinsic}" if self.intrinsic else ""
        blocks = " in blocks" if self.blocks else ""
        return f"tile {self.node} {self.structure}{intrinsic}{cache}{fused}{blocks}"

    def _tail(self, node: Node, axis: int) -> Tail:
        """Return which tiles of an axis may be partial. Partial tiles of rows cost little. Tails of vectors
        are peeled off the inner levels, because otherwise every lane would evaluate a condition.
        """
        if node.axes[axis].kind is AxisKind.REDUCTION or self.structure.count("R") < 2:
            return Tail.NONE
        return Tail.INNER if axis == node.vector_axis else Tail.ANY

    def _ways_to_read(self, dag: Dag, node: Node, buffer: str) -> tuple[str, ...]:
        """Return the ways to read an operand. `direct`: in place. `packed`: from a constant that is packed
        into loop order ahead of time. A number of tile levels: from a copy of the part that is read inside
        these levels.
        """
        reads = [read for read in node.reads if read.buffer == buffer]
        if self.structure.count("R") < 2 or len(reads) > 1 or not all(i.affine for i in reads[0].indices):
            return ("direct",)
        if dag.buffer[buffer].constant:
            is_packable = is_permutation(dag, node, reads[0]) and not reads[0].axes.intersection(self.rows)
            return ("direct", "packed") if is_packable else ("direct",)
        inner = self.structure.index("R")
        whole = ("0",) if is_arranged(dag, node, reads[0]) else ()
        return ("direct", *whole, str(inner), str(inner + 1))

    def _ways_to_arrange(self, dag: Dag, buffer: str) -> tuple[str, ...]:
        """Return the ways to lay out an intrinsic's columns: `packed` ahead of time if they are constant,
        else copied inside a number of tile levels.
        """
        if dag.buffer[buffer].constant:
            return ("packed",)
        inner = self.structure.index("R")
        return ("0", str(inner), str(inner + 1))


@is_valid.register
def _(stage: Tiled, population: Population) -> NDArray[np.bool_]:
    return tile_compiles_quickly(population, Nest.of(population, stage))


@estimate_stage.register
def _(stage: Tiled, population: Population, parameters: CostParameters) -> Estimate:
    terms = tile_terms(population, stage, parameters)
    return Estimate(terms["node_s"] + terms["epilogue_s"], terms)


class LoopNest(Stage):
    """A nest of plain loops. A variable selects its compute location: standalone, inside its consumer's
    loops, or inlined. A nest of a chain in blocks is computed inside the loop over the blocks.
    """

    kind = StageKind.NEST

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        dag, node = sketch.dag, sketch.dag.node[self.node]
        inside = possible_depths(dag, sketch.stage, node)
        feeds_intrinsic = any(sketch.stage[one.name].intrinsic for one in readers(dag, sketch.stage, node))
        inline = ("inline",) if can_inline(dag, node) and not feeds_intrinsic else ()
        if (inside or inline) and not self.blocks:
            yield Choice("location", node.name, (*inline, "root", *(str(depth) for depth in inside)))
        if self.rfactor:
            yield Choice("lanes", node.name, rfactor_lanes(node, self.rfactor))
        loops = vector_loops(node)
        if loops and not self.rfactor.fills_vectors:
            extent = extent_of(node, loops)
            lanes = tuple(lanes for lanes in VECTOR_LANES if lanes == 1 or lanes < 2 * extent)
            yield Choice("vector", node.name, lanes)
            if len(loops) > 1:
                yield Choice("fused", node.name, tuple(range(1, len(loops) + 1)))
        transposed = transposed_axis(node)
        if transposed is not None and not self.blocks:
            parts = tuple(part for part in ROW_PARTS if node.axes[transposed].extent % part == 0)
            if len(parts) > 1:
                yield Choice("row", node.name, parts)
        if node.spatial and not self.blocks:
            # Numbers of outer loops that are fused and run in parallel. Loops of one iteration add nothing.
            sizes = [node.axes[axis].extent for axis in node.spatial]
            parallel = (depth for depth, size in enumerate(sizes, start=1) if size > 1)
            yield Choice("parallel", node.name, (0, *parallel))
            yield Choice("unroll", node.name, UNROLL_STEPS)

    def __str__(self) -> str:
        rfactor = f" rfactor {self.rfactor}" if self.rfactor else ""
        return f"nest {self.node}{rfactor}" + (" in blocks" if self.blocks else "")


@is_valid.register
def _(stage: LoopNest, population: Population) -> NDArray[np.bool_]:
    return encloses_readers(population, stage) & nest_compiles_quickly(population, stage)


@estimate_stage.register
def _(stage: LoopNest, population: Population, parameters: CostParameters) -> Estimate:
    terms = nest_terms(population, stage, parameters)
    return Estimate(terms["s"], terms)


class Unrolled(Stage):
    """A nest over small constant matrices, whose axes are unrolled. The other axes are tiled."""

    kind = StageKind.UNROLLED

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        node = sketch.dag.node[self.node]
        for axis in node.looped_spatial:
            extent = extent_in_block(node, self, axis)
            if extent > 1 and axis not in self.rows:
                yield Split(node.name, axis, extent, len(self.structure))

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" + (" in blocks" if self.blocks else "")


@estimate_stage.register
def _(stage: Unrolled, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(unrolled_seconds(population, stage, parameters))


class RowBlock(Stage):
    """The last nest of a chain that is computed in blocks of rows. Its outermost loop, over the blocks,
    surrounds the whole chain.
    """

    kind = StageKind.BLOCKS

    def __str__(self) -> str:
        channels = f" by {self.channel_blocks}" if self.channel_blocks > 1 else ""
        return f"nest {self.node} in {self.blocks}{channels} {self.kind}"


@estimate_stage.register
def _(stage: RowBlock, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(block_seconds(population, stage, parameters))


def extent_in_block(node: Node, stage: Stage, axis: int) -> int:
    """Return the iterations of an axis; within a block if the stage is computed in blocks."""
    extent = node.axes[axis].extent
    if axis in stage.channels:
        return extent // stage.channel_blocks
    if not stage.blocks or axis not in stage.rows:
        return extent
    return extent // stage.blocks if axis == stage.rows[-1] else 1
