"""Random annotation: draw valid values for a sketch's variables (paper section 4.2)."""

from __future__ import annotations

import numpy as np

from search.programs.compute_location import is_inlined, location_depth
from search.programs.program import Population
from search.programs.validity import is_valid, valid
from search.sketches.sketch import Sketch

# How often to redraw invalid stages on GPUs.
MAX_REDRAWS = 48


def sample(sketch: Sketch, count: int, rng: np.random.Generator) -> Population:
    """Draw `count` programs, each variable uniformly, and return the valid ones."""
    return keep_valid(draw(sketch, count, rng))


def draw(sketch: Sketch, count: int, rng: np.random.Generator) -> Population:
    """Draw `count` programs, each variable uniformly. Some may be invalid."""
    drawn = np.zeros((count, sketch.num_columns), dtype=np.int64)
    for variable in sketch.variables:
        drawn[:, sketch.columns[variable.key]] = variable.draw(count, rng)
    population = Population(sketch, drawn)
    return population if sketch.gpu is None else _redraw(population, rng)


def keep_valid(population: Population) -> Population:
    """Return the distinct valid programs. Variables without effect get their first value."""
    distinct = canonical(population).distinct()
    return distinct.take(np.flatnonzero(valid(distinct)))


def _redraw(population: Population, rng: np.random.Generator) -> Population:
    """Redraw invalid stages a few times.

    On GPUs, few random programs are valid. After redrawing nearly all are, and all valid values of a stage
    are equally likely.
    """
    sketch, values = population.sketch, population.values.copy()
    for stage in sketch.stages:
        own = [variable for variable in sketch.variables if variable.node == stage.node]
        for _ in range(MAX_REDRAWS):
            rows = np.flatnonzero(~is_valid(stage, Population(sketch, values)))
            if not len(rows):
                break
            for variable in own:
                values[rows, sketch.columns[variable.key]] = variable.draw(len(rows), rng)
    return Population(sketch, values)


def canonical(population: Population) -> Population:
    """Set variables without effect to their first value.

    A nest at a loop of its consumer has no parallel or unrolled loops, and an inlined nest has no loops.
    Loops are fused only for vectors.
    """
    sketch, values = population.sketch, population.values.copy()
    for stage in sketch.nests:
        variable = sketch.choice(stage.node, "location")
        if variable is None:
            continue
        inlined = is_inlined(population, stage.node)
        moved = inlined | (location_depth(population, stage.node) > 0)
        for kind, rows in (("parallel", moved), ("unroll", moved), ("vector", inlined)):
            if (stage.node, kind) in sketch.columns:
                values[rows, sketch.columns[stage.node, kind]] = 0
    for stage in sketch.nests:
        if (stage.node, "fused") in sketch.columns:
            is_scalar = values[:, sketch.columns[stage.node, "vector"].start] == 0
            values[is_scalar, sketch.columns[stage.node, "fused"]] = 0
    return Population(sketch, values)
