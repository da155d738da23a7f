"""Search one operator with several variants of our search, and compare their best programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.engines.tunefarm_search import TunefarmSearch, Variant
from benchmarks.suite import OPERATORS
from benchmarks.timing.finals import SearchResult, Trials, time_best_programs
from benchmarks.timing.measurer import ProgramMeasurer
from compiler.target import detect_device


def compare_variants(
    operator: str,
    variants: Mapping[str, Variant],
    trials: int,
    milestones: Sequence[int],
    rounds: int,
    threads: int,
    seed: int,
) -> tuple[SearchResult, ...]:
    """Search with every variant from the same seed. Time the best programs after each milestone in turns.

    Needs its own process, with TVM_NUM_THREADS in the environment. Raises UnsupportedSubgraph.
    """
    device = detect_device(threads)
    module = OPERATORS[operator].module(OPERATORS[operator].benchmark)
    measurer = ProgramMeasurer(module, device)
    tried: dict[str, Trials] = {}
    for name, variant in variants.items():
        search = TunefarmSearch(module, device, variant)
        searched = search.tune(trials, measurer.timed, np.random.default_rng(seed))
        tried[name] = Trials(searched.trials, milestones)
        print(f"  {operator}: {name}", flush=True)
    errors: list[str] = []
    results = time_best_programs(measurer, operator, tried, rounds, errors)
    for error in errors:
        print(f"  {operator}: {error}", flush=True)
    return tuple(results.values())
