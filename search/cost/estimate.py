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
    """The `seconds` of programs or of one stage, and the quantities that they are computed from, each
    [programs]. An estimate of programs has the seconds of their `stages`, by node.
    """

    seconds: NDArray[np.float64]
    quantities: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    stages: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@singledispatch
def estimate_stage(stage: Stage, population: Population, parameters: CostParameters) -> Estimate:
    """Estimate the seconds of a stage; 0 by default, for stages that others compute. The kinds of stages
    register their estimates in `search.stages`.
    """
    return Estimate(np.zeros(len(population)))
