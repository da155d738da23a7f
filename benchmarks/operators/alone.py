"""Searches of ours by themselves, compared with each other: nothing of MetaSchedule's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.engines.ours import OurSpace, Variant
from benchmarks.suite import OPERATORS
from benchmarks.timing.finals import Side, Trials, judge_all
from benchmarks.timing.judge import Judge
from compiler.target import detect_device


def judge_alone(
    operator: str,
    variants: Mapping[str, Variant],
    trials: int,
    milestones: Sequence[int],
    rounds: int,
    threads: int,
    seed: int,
) -> tuple[Side, ...]:
    """Every variant's search from the same seed, and its best after every milestone, all in turns.

    Wants a process of its own, with TVM_NUM_THREADS in the environment. Raises UnsupportedSubgraph.
    """
    device = detect_device(threads)
    module = OPERATORS[operator].module(OPERATORS[operator].benchmark)
    judge = Judge(module, device)
    tried: dict[str, Trials] = {}
    for name, variant in variants.items():
        space = OurSpace(module, device, variant)
        searched = space.tune(trials, judge.timed, np.random.default_rng(seed))
        tried[name] = Trials(searched.trials, milestones)
        print(f"  {operator}: {name}", flush=True)
    errors: list[str] = []
    sides = judge_all(judge, operator, tried, rounds, errors)
    for error in errors:
        print(f"  {operator}: {error}", flush=True)
    return tuple(sides.values())
