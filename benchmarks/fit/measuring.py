"""Measure programs for a fit: the programs of a short search of each layer, and random ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.fit.programs import line_of_program
from benchmarks.layers import LAYERS, Layer
from benchmarks.suite import OPERATORS
from benchmarks.timing.measurer import ProgramMeasurer
from core.device import Device
from search.programs.program import Program

# The numbers of programs for each layer and device class. With random programs only, the fit overrates
# programs that searches find.
SEARCHED, RANDOM = 28, 10
SUITE: Mapping[str, Layer] = {
    name: Layer(name, name, operator.benchmark) for name, operator in OPERATORS.items() if name != "attention"
}


def run(name: str, device_class: str, device: Device, seed: int) -> list[str]:
    """Return lines for the file of measured programs.

    Needs its own process, with TVM_NUM_THREADS in the environment. Raises UnsupportedSubgraph.
    """
    layer = {**SUITE, **LAYERS}[name]
    module, rng = layer.module(), np.random.default_rng(seed)
    measurer, space = ProgramMeasurer(module, device), TunefarmSearch(module, device)
    searched = space.tune(SEARCHED, measurer.timed, rng)
    measured: list[tuple[Program, float]] = [(program, secs) for _, program, secs in searched.samples]
    drawn = space.uniform(RANDOM, rng)
    best_s = min((secs for _, secs in measured), default=math.inf)
    candidates = [space.candidate(program) for program in drawn]
    measured += zip(drawn, measurer.timed(candidates, best_s), strict=True)
    return [
        line_of_program(name, layer.operator, layer.shape, layer.batch, device_class, program, secs)
        for program, secs in measured
    ]
