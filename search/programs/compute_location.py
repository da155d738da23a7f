"""Compute locations and vectors of nests, for every program of a population."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from search.dag import Node, extent_of
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.predicates import is_strided, is_strided_when_fused
from search.sketches.stage import Rfactor, Stage, StageKind
from search.sketches.variables import vector_loops


def location_depth(population: Population, node: str) -> Ints:
    """[programs]: the number of the consumer's loops around a nest; 0 for a standalone or an inlined nest."""
    variable = population.sketch.choice(node, "location")
    if variable is None:
        return np.zeros(len(population), dtype=np.int64)
    depths = [int(option) if str(option).isdigit() else 0 for option in variable.options]
    return np.array(depths, dtype=np.int64)[population.column(node, "location")]


def is_inlined(population: Population, node: str) -> NDArray[np.bool_]:
    """[programs]: whether a nest is inlined."""
    variable = population.sketch.choice(node, "location")
    if variable is None or "inline" not in variable.options:
        return np.zeros(len(population), dtype=bool)
    return np.asarray(population.column(node, "location") == variable.options.index("inline"))


def is_inline_value(population: Population, buffer: str) -> NDArray[np.bool_]:
    """[programs]: whether each load of a buffer computes its element."""
    producer = population.sketch.dag.producer.get(buffer)
    if producer is None:
        return np.zeros(len(population), dtype=bool)
    is_fixed = population.sketch.stage[producer.name].kind is StageKind.INLINE
    return is_inlined(population, producer.name) | is_fixed


def bytes_in_memory(population: Population, buffer: str) -> Ints:
    """[programs]: the bytes of an element in memory. An inline value that is made from one operand has the
    operand's bytes.
    """
    dag = population.sketch.dag
    own = np.full(len(population), dag.buffer[buffer].item_bytes)
    producer = dag.producer.get(buffer)
    if producer is None or len(producer.distinct_reads) != 1:
        return own
    operand = bytes_in_memory(population, producer.reads[0].buffer)
    return np.where(is_inline_value(population, buffer), operand, own)


def encloses_readers(population: Population, stage: Stage) -> NDArray[np.bool_]:
    """[programs]: whether the loops around a nest enclose all of its readers."""
    sketch = population.sketch
    compute_at = sketch.compute_at.get(stage.node)
    depth = location_depth(population, stage.node)
    if compute_at is None:
        return np.ones(len(depth), dtype=bool)
    deepest = _readers_depth(population, stage.node, compute_at.name)
    return np.asarray(depth <= np.where(is_inlined(population, compute_at.name), 0, deepest))


def _readers_depth(population: Population, node: str, compute_at: str) -> Ints:
    """[programs]: the smallest depth of a reader of `node` in these loops."""
    dag = population.sketch.dag
    least = np.full(len(population), np.iinfo(np.int64).max)
    for consumer in dag.consumers(dag.node[node]):
        if consumer.name == compute_at:
            continue
        own = location_depth(population, consumer.name)
        onward = _readers_depth(population, consumer.name, compute_at)
        passes = is_inlined(population, consumer.name) | (consumer.name not in population.sketch.nest_names)
        least = np.minimum(least, np.where(passes, onward, own))
    return least


def parallel_chunks(population: Population, node: Node) -> Ints:
    """[programs]: iterations of a nest's parallel loops; 1 where it has none."""
    if (node.name, "parallel") not in population.sketch.columns:
        return np.ones(len(population), dtype=np.int64)
    extents = np.cumprod([1, *(node.axes[axis].extent for axis in node.spatial)])
    return np.asarray(extents[population.chosen(node.name, "parallel")])


def vector_lanes(population: Population, stage: Stage) -> Ints:
    """[programs]: elements that one iteration of the innermost loop computes.

    A reduction isn't vectorized if its lanes don't divide the loop. Other nests compute the remainder in
    shorter vectors.
    """
    kind = "lanes" if stage.rfactor.fills_vectors else "vector"
    if (stage.node, kind) not in population.sketch.columns:
        return np.ones(len(population), dtype=np.int64)
    extent = vector_extent(population, stage)
    lanes = np.minimum(population.chosen(stage.node, kind), extent)
    if population.sketch.dag.node[stage.node].reduction and not stage.rfactor.fills_vectors:
        return np.where(extent % lanes == 0, lanes, 1)
    return lanes


def is_scalar_loop(population: Population, stage: Stage) -> NDArray[np.bool_]:
    """[programs]: whether all loops of a nest without vectors are fused into the parallel one, and an operand
    is repeated along some of them. Its index has a remainder then, which LLVM can't vectorize.
    """
    dag = population.sketch.dag
    node = dag.node[stage.node]
    if (node.name, "parallel") not in population.sketch.columns:
        return np.zeros(len(population), dtype=bool)
    inside = [
        np.where(depth > 0, depth, len(node.spatial))
        for each in population.sketch.nests
        if population.sketch.compute_at.get(each.node) is node
        for depth in [location_depth(population, each.node)]
    ]
    fused = np.minimum.reduce([population.chosen(node.name, "parallel"), *inside])
    last = max((at for at, axis in enumerate(node.spatial, 1) if node.axes[axis].extent > 1), default=1)
    is_standalone = (location_depth(population, node.name) == 0) & ~is_inlined(population, node.name)
    return np.asarray(is_standalone & (fused >= last) & _repeats_operands(population, node))


def _repeats_operands(population: Population, node: Node) -> NDArray[np.bool_]:
    """[programs]: whether an operand of a node, or of a producer that is inlined, is repeated along some of
    several axes. One element for all axes doesn't count."""
    wide = {axis for axis in node.spatial if node.axes[axis].extent > 1}
    repeats = np.zeros(len(population), dtype=bool)
    for read in node.reads:
        moving = wide & set(read.axes)
        repeats |= bool(moving) and moving != wide
        producer = population.sketch.dag.producer.get(read.buffer)
        if producer is not None:
            repeats |= is_inline_value(population, read.buffer) & _repeats_operands(population, producer)
    return repeats


def vector_extent(population: Population, stage: Stage) -> Ints:
    """[programs]: iterations of the loop that is vectorized, or split for it."""
    if stage.rfactor is Rfactor.INNER:
        return population.chosen(stage.node, "lanes")
    node = population.sketch.dag.node[stage.node]
    return _by_loops(population, stage, [extent_of(node, axes) for axes in _vector_axes(population, stage)])


def row_parts(population: Population, stage: Stage) -> Ints:
    """[programs]: elements of an operand's row that the innermost loops of a transposition read together; 1
    for other nests.
    """
    if (stage.node, "row") not in population.sketch.columns:
        return np.ones(len(population), dtype=np.int64)
    return population.chosen(stage.node, "row")


def count_gathers(population: Population, stage: Stage) -> Ints:
    """[programs]: accesses whose lanes aren't adjacent in memory, including accesses of inlined producers."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    accesses = (*node.reads, node.write)
    own = _by_loops(
        population,
        stage,
        [
            sum(is_strided_when_fused(dag, node, a, axes) for a in accesses)
            for axes in _vector_axes(population, stage)
        ],
    )
    return own + _inlined_gathers(population, node)


def _inlined_gathers(population: Population, node: Node) -> Ints:
    """[programs]: accesses of inlined producers with non-adjacent lanes, although their results have adjacent
    lanes along the node's contiguous axis.
    """
    dag, total = population.sketch.dag, np.zeros(len(population), dtype=np.int64)
    for read in node.reads:
        producer = dag.producer.get(read.buffer)
        if producer is None or node.vector_axis not in read.axes or is_strided(read, node.vector_axis):
            continue
        own = sum(is_strided(one, producer.vector_axis) for one in producer.reads)
        total = total + is_inlined(population, producer.name) * (own + _inlined_gathers(population, producer))
    return total


def _vector_axes(population: Population, stage: Stage) -> list[tuple[int, ...]]:
    """Return the axes of the vectorized loop, for each number of loops that may be fused into it."""
    node = population.sketch.dag.node[stage.node]
    if stage.rfactor.fills_vectors:
        return [(node.reduction[-1],)]
    loops = vector_loops(node)
    return [loops[:count] for count in range(1, len(loops) + 1)] or [()]


def _by_loops(population: Population, stage: Stage, values: Sequence[int]) -> Ints:
    """[programs]: the element of `values` for the number of fused loops."""
    if len(values) == 1:
        return np.full(len(population), values[0])
    return np.array(values)[population.column(stage.node, "fused")]
