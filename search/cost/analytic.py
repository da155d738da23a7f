"""An analytic estimate of a program's run time, before anything was measured: rooflines of its tiled nodes
and of its nests. It orders the first candidates and is what the learned model starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.device import Device
from search.cost.analytic_nest import nest_terms, unrolled_seconds
from search.cost.analytic_tile import tile_terms
from search.cost.gpu_analytic import gpu_terms
from search.cost.machine import FITTED, Machine, ShapeFactors
from search.programs.nest import Floats
from search.programs.program import Population
from search.sketches.sketch import Sketch
from search.sketches.stage import Placement, Stage


@dataclass(frozen=True)
class Estimate:
    """Quantities of every program, each [programs]; `seconds` is the estimate itself."""

    seconds: Floats
    quantities: Mapping[str, Floats]


def estimate(population: Population, device: Device, factors: ShapeFactors = FITTED) -> Estimate:
    """Estimated seconds and the quantities behind them: those of the largest tiled node and, by rank, of the
    nests that do the most work."""
    sketch = population.sketch
    if sketch.gpu is not None:
        return Estimate(*gpu_terms(population, device))
    machine = Machine(device, factors)
    seconds = np.zeros(len(population))
    quantities: dict[str, Floats] = {}
    for stage in reversed(_by_work(sketch, sketch.tiled)):
        quantities = tile_terms(population, stage, machine)
        seconds = seconds + quantities["node_s"] + quantities["epilogue_s"]
    for stage in sketch.placed(Placement.UNROLLED):
        seconds = seconds + unrolled_seconds(population, stage, machine)
    for rank, stage in enumerate(_by_work(sketch, sketch.nests)):
        terms = nest_terms(population, stage, machine)
        seconds = seconds + terms["s"]
        quantities |= {f"nest_{rank}_{name}": term for name, term in terms.items()}
    return Estimate(seconds, quantities)


def _by_work(sketch: Sketch, stages: Sequence[Stage]) -> list[Stage]:
    """Those that compute most first."""

    def work(stage: Stage) -> float:
        node = sketch.dag.node[stage.node]
        return max(node.flops, 1.0) * node.iterations

    return sorted(stages, key=work, reverse=True)
