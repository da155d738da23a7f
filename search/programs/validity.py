"""The validity of programs, stage by stage."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from search.programs.program import Population
from search.sketches.stage import Stage


@singledispatch
def is_valid(stage: Stage, population: Population) -> NDArray[np.bool_]:
    """[programs]: whether the device can run the stage and it compiles quickly. The kinds of stages register
    their conditions in `search.stages`. Others are always valid.
    """
    return np.ones(len(population), dtype=bool)


def valid(population: Population) -> NDArray[np.bool_]:
    """[programs]: whether every stage is valid."""
    keep = np.ones(len(population), dtype=bool)
    for stage in population.sketch.stages:
        keep &= is_valid(stage, population)
    return keep
