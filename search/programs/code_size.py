"""Limits on code size: programs that compile slowly never run well."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.dag import Dag, Node
from search.programs.compute_location import (
    count_gathers,
    is_inlined,
    location_depth,
    parallel_chunks,
    vector_lanes,
)
from search.programs.nest import Floats, Nest, vector_instructions
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.predicates import is_arranged, is_strided
from search.sketches.stage import Stage
from search.sketches.variables import MAX_INNERMOST, read_kind

# Larger unrolled bodies spill registers, and compile for seconds.
MAX_TILE_INSTRUCTIONS = 64
MAX_UNROLLED_INSTRUCTIONS = 512
MAX_NEST_INSTRUCTIONS = 4096
# The longest vectors of any CPU.
VECTOR_BYTES = 64
# Instructions of a gathered lane (load and insert) and of a mathematical function (a polynomial).
GATHER_INSTRUCTIONS = 2
FUNCTION_INSTRUCTIONS = 16


def tile_compiles_quickly(population: Population, nest: Nest) -> NDArray[np.bool_]:
    """[programs]: whether the unrolled register tile compiles quickly."""
    elements, width = _tile_shape(nest)
    longest = lanes_of_longest(population.sketch.dag, nest.node)
    vectors = elements // width * vector_instructions(width, longest)
    instructions = vectors * _instructions_a_step(population, nest.node) + _gathers_a_step(population, nest)
    unrolled = instructions * np.clip(unrolled_steps(population, nest), 1, nest.trips(nest.depth - 2))
    fits = (nest.tile <= MAX_INNERMOST).all(axis=0) & (vectors <= MAX_TILE_INSTRUCTIONS)
    return np.asarray(fits & (unrolled <= MAX_UNROLLED_INSTRUCTIONS))


def nest_compiles_quickly(population: Population, stage: Stage) -> NDArray[np.bool_]:
    """[programs]: whether a vectorized nest, with its unrolled loops or its consumer's, compiles quickly."""
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    lanes, longest = vector_lanes(population, stage), lanes_of_longest(sketch.dag, node)
    gathered = GATHER_INSTRUCTIONS * count_gathers(population, stage) * lanes
    # Twice as many gathered lanes take LLVM eight times as long if they exceed a register.
    gathered = gathered * np.maximum(lanes / longest, 1.0) ** 2
    work = gathered + -(-lanes // longest) * max(node.flops, 1.0)
    unrolled = np.minimum(
        _unroll_of(population, stage.node), node.iterations // parallel_chunks(population, node) // lanes
    )
    if stage.node in sketch.compute_at:
        compute_at_unroll = _unroll_of(population, sketch.compute_at[stage.node].name)
        unrolled = np.where(location_depth(population, stage.node) > 0, compute_at_unroll, unrolled)
    return np.asarray(is_inlined(population, stage.node) | (work * unrolled <= MAX_NEST_INSTRUCTIONS))


def _unroll_of(population: Population, node: str) -> Ints:
    if (node, "unroll") not in population.sketch.columns:
        return np.ones(len(population), dtype=np.int64)
    return np.maximum(population.chosen(node, "unroll"), 1)


def unrolled_steps(population: Population, nest: Nest) -> Ints:
    """[programs]: how many steps around the register tile the compiler may unroll; at least 1.

    The unroll limit counts rows of vectors, so a tile of several rows uses more of it.
    """
    elements, width = _tile_shape(nest)
    rows = elements // width * vector_instructions(width, MAX_INNERMOST)
    return np.maximum(population.chosen(nest.node.name, "unroll") // rows, 1)


def lanes_of_longest(dag: Dag, node: Node) -> int:
    """Return how many of a node's results fit the longest vector of any CPU."""
    return VECTOR_BYTES // dag.buffer[node.write.buffer].item_bytes


def _tile_shape(nest: Nest) -> tuple[Ints, Ints]:
    """Return the elements of the register tile in all, and along the vectorized axis: [programs] each."""
    axis = nest.node.vector_axis
    elements = nest.tile.prod(axis=0)
    return elements, nest.tile[axis] if axis is not None else np.ones_like(elements)


def _instructions_a_step(population: Population, node: Node) -> Ints:
    """[programs]: instructions for each vector of a tile; more than one if mathematical functions are
    inlined.
    """
    dag = population.sketch.dag
    count = np.ones(len(population), dtype=np.int64)
    for stage in population.sketch.nests:
        producer = dag.node[stage.node]
        if producer.is_expensive and node in dag.consumers(producer):
            count = count + FUNCTION_INSTRUCTIONS * is_inlined(population, stage.node)
    return count


def _gathers_a_step(population: Population, nest: Nest) -> Floats:
    """[programs]: instructions that gather uncopied operands with non-adjacent lanes."""
    dag, node = population.sketch.dag, nest.node
    total = np.zeros(len(population))
    for read in node.reads:
        if not is_strided(read, node.vector_axis) or nest.stage.intrinsic:
            continue
        lanes = GATHER_INSTRUCTIONS * nest.tile[sorted(read.axes)].prod(axis=0, dtype=np.float64)
        variable = population.sketch.choice(node.name, read_kind(read.buffer))
        if variable is not None and (is_arranged(dag, node, read) or "packed" in variable.options):
            lanes = np.where(population.column(node.name, variable.kind) > 0, 0.0, lanes)
        total = total + lanes
    return total
