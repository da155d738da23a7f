"""An analytic estimate of a program's run time, before anything was measured: rooflines of its tiled nodes
and of its nests. It orders the first candidates and is what the learned model starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from search.analytic_nest import nest_seconds, unrolled_seconds
from search.analytic_tile import tile_terms
from search.device import Device
from search.nest import Floats
from search.program import Population
from search.sketch import Sketch
from search.stage import Placement, Stage


@dataclass(frozen=True)
class Estimate:
    """Quantities of every program, each [programs]; `seconds` is the estimate itself."""

    seconds: Floats
    quantities: Mapping[str, Floats]


def estimate(population: Population, device: Device) -> Estimate:
    """Estimated seconds and the quantities behind them; the largest tiled node's stand for the program."""
    sketch = population.sketch
    seconds = np.zeros(len(population))
    quantities: dict[str, Floats] = {}
    largest = _largest(sketch)
    for stage in sketch.tiled:
        terms = tile_terms(population, stage, device)
        seconds = seconds + terms["node_s"] + terms["epilogue_s"]
        if stage == largest:
            quantities = terms
    for stage in sketch.placed(Placement.UNROLLED):
        seconds = seconds + unrolled_seconds(population, stage, device)
    for stage in sketch.nests:
        moved = nest_seconds(population, stage, device)
        seconds = seconds + moved
        quantities["moved_s"] = quantities.get("moved_s", 0.0) + moved
    return Estimate(seconds, quantities)


def _largest(sketch: Sketch) -> Stage | None:
    def work(stage: Stage) -> float:
        node = sketch.dag.node[stage.node]
        return max(node.flops, 1.0) * node.iterations

    return max(sketch.tiled, key=work, default=None)
