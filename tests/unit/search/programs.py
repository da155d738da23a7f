"""Programs and populations for tests, and hypothesis strategies that draw them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from search.annotate import sample, table_of
from search.program import Population, Program
from search.sketch import Choice, Sketch, Split, generate
from tests.unit.search.dags import DAGS

OPEN_SKETCHES = [sketch for make in DAGS.values() for sketch in generate(make()) if sketch.num_columns]

sketches = st.sampled_from(OPEN_SKETCHES)
seeds = st.integers(0, 2**32 - 1)


def middling(sketch: Sketch) -> Program:
    """The same program on every call: each variable's middle value."""
    return Program(sketch, tuple(v for variable in sketch.variables for v in _middle(variable)))


def _middle(variable: Split | Choice) -> tuple[int, ...]:
    if isinstance(variable, Choice):
        return (len(variable.options) // 2,)
    table = table_of(variable)
    return tuple(int(factor) for factor in table[len(table) // 2])


def drawn(sketch: Sketch, seed: int, count: int = 32) -> Population:
    """Valid programs; never none of them."""
    rng = np.random.default_rng(seed)
    population = sample(sketch, count, rng)
    while not len(population):
        population = sample(sketch, count, rng)
    return population


def all_programs(population: Population) -> list[Program]:
    """Raises ValueError when one of them doesn't fit its sketch."""
    return [population.program(row) for row in range(len(population))]
