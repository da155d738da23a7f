"""Random values for a sketch's variables: the initial population (paper section 4.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.factors import Ints, factorizations
from search.nest import Nest, vector_length
from search.program import Population
from search.sketch import UNROLL_STEPS, Sketch, Split

MAX_INNERMOST = 64
# Unrolled bodies of more instructions only spill, and take the compiler seconds.
MAX_TILE_INSTRUCTIONS = 64
MAX_UNROLLED_INSTRUCTIONS = 512
# Elements that the longest vector instructions of today work on.
VECTOR_ELEMENTS = 16


def sample(sketch: Sketch, count: int, rng: np.random.Generator) -> Population:
    """`count` programs drawn uniformly, variable by variable, without those that `valid` refuses."""
    drawn = np.zeros((count, sketch.num_columns), dtype=np.int64)
    for variable in sketch.variables:
        if isinstance(variable, Split):
            table = table_of(variable)
            where = sketch.columns[variable.node, variable.axis]
            drawn[:, where] = table[rng.integers(len(table), size=count)]
        else:
            where = sketch.columns[variable.node, variable.kind]
            drawn[:, where] = rng.integers(len(variable.options), size=(count, 1))
    population = Population(sketch, drawn).distinct()
    return population.take(np.flatnonzero(valid(population)))


def table_of(split: Split) -> Ints:
    return factorizations(split.extent, split.parts, MAX_INNERMOST)


def valid(population: Population) -> NDArray[np.bool_]:
    """[programs]: whether the unrolled body of every tiled node is within what compiles quickly."""
    keep = np.ones(len(population), dtype=bool)
    for stage in population.sketch.tiled:
        nest = Nest.of(population, stage)
        tile = nest.tile
        axis = nest.node.vector_axis
        elements = tile.prod(axis=0)
        width = tile[axis] if axis is not None else np.ones_like(elements)
        rows = elements // vector_length(width)
        instructions = elements // np.minimum(vector_length(width), VECTOR_ELEMENTS)
        keep &= (tile <= MAX_INNERMOST).all(axis=0)
        keep &= instructions <= MAX_TILE_INSTRUCTIONS
        keep &= instructions * _unrolled_steps(population, nest, rows) <= MAX_UNROLLED_INSTRUCTIONS
    return keep


def _unrolled_steps(population: Population, nest: Nest, rows: Ints) -> Ints:
    """How many innermost reduction steps the chosen unroll limit, which counts vector rows, covers."""
    limits = np.array(UNROLL_STEPS)[population.column(nest.node.name, "unroll")]
    return np.clip(limits // rows, 1, nest.trips(nest.depth - 2))
