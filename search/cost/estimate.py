"""The analytic estimate of one stage of programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from search.cost.cost_parameters import CostParameters
from search.programs.program import Population
from search.sketches.stage import Stage


@dataclass(frozen=True)
class Estimate:
    """The `seconds` that programs or one of their stages take, and the quantities behind them: [programs]."""

    seconds: NDArray[np.float64]
    quantities: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@singledispatch
def estimate_stage(stage: Stage, population: Population, parameters: CostParameters) -> Estimate:
    """Estimate the seconds of a stage. A stage that others compute takes none by itself.

    A kind of stage registers its own estimate in `search.stages`.
    """
    return Estimate(np.zeros(len(population)))
