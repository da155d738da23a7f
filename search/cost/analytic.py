"""Estimate a program's run time analytically, without measurements.

It orders the first candidates, and the learned cost model starts from it.
"""

from __future__ import annotations

import numpy as np

from core.device import Device
from search.cost.cost_parameters import FITTED, CostParameters, ShapeFactors
from search.cost.estimate import Estimate, estimate_stage
from search.programs.nest import Floats
from search.programs.program import Population
from search.sketches.stage import Stage, StageKind


def estimate(population: Population, device: Device, factors: ShapeFactors = FITTED) -> Estimate:
    """Estimate programs as the sum of their stages.

    The quantities describe the largest tiled stage and, numbered by rank, the nests with the most work.
    """
    sketch, parameters = population.sketch, CostParameters(device, factors)

    def work(stage: Stage) -> float:
        node = sketch.dag.node[stage.node]
        return max(node.flops, 1.0) * node.iterations

    seconds = np.zeros(len(population))
    quantities: dict[str, Floats] = {}
    stages: dict[str, Floats] = {}
    rank = 0
    for stage in sorted(sketch.stages, key=work, reverse=True):
        part = estimate_stage(stage, population, parameters)
        seconds = seconds + part.seconds
        stages[stage.node] = part.seconds
        if stage.kind is StageKind.NEST:
            quantities |= {f"nest_{rank}_{name}": term for name, term in part.quantities.items()}
            rank += 1
        elif "node_s" not in quantities:
            quantities |= part.quantities
    if sketch.gpu is not None:
        quantities["moved_s"] = seconds - quantities.get("node_s", 0.0)
    return Estimate(seconds, quantities, stages)
