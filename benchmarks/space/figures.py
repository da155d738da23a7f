"""Figures of both engines' spaces of programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.results.figures import Figure, at_least, at_most, figure, number
from benchmarks.space.run import OperatorResult, Plan, Rates
from benchmarks.timing.interleaved import Pair, Timings

# Operators that vectorized exponentials and reductions should make twice as fast.
TWICE = ("softmax", "layer_norm", "GELU", "attention")


def figures_of(found: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    """Return the geometric mean first, then the figures of each operator."""
    return [*_overall(found, plan), *(each for one in found for each in _operator(one, plan))]


def density(secs: Sequence[float]) -> float:
    """Return the median over the best; inf when half of the programs failed."""
    best = min(secs)
    return statistics.median(secs) / best if math.isfinite(best) else math.inf


def _overall(found: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    pairs = [(density(one.ours_s), density(one.theirs_s)) for one in found]
    both = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if not both:
        return []
    ours, theirs = (statistics.geometric_mean(side) for side in zip(*both, strict=True))
    left_out = [one.operator for one, pair in zip(found, pairs, strict=True) if pair not in both]
    without = f"; without {', '.join(left_out)}, where most failed" if left_out else ""
    name = f"geometric mean of {len(both)} operators: median over best of {plan.programs} random programs"
    return [
        figure(name, ours, "x", peer=f"MetaSchedule: {number(theirs)}{without}"),
        figure(f"{name}, relative to MetaSchedule", ours / theirs, "x", aim=at_most(0.5)),
    ]


def _operator(found: OperatorResult, plan: Plan) -> list[Figure]:
    name, programs = found.operator, plan.programs
    figures = [
        *_density(found, plan),
        *_final(f"{name}: best of {programs} random programs relative to MetaSchedule's", found.random, 1),
        *_final(
            f"{name}: best known after {plan.trials} trials relative to MetaSchedule's",
            found.ceiling,
            0.5 if name in TWICE else 1,
        ),
    ]
    return figures + (_rates(name, found.rates) if found.rates else [])


def _density(found: OperatorResult, plan: Plan) -> list[Figure]:
    ours, theirs = density(found.ours_s), density(found.theirs_s)
    failed, theirs_failed = (sum(map(math.isinf, side)) for side in (found.ours_s, found.theirs_s))
    figures = []
    if math.isfinite(ours):
        name = f"{found.operator}: median over best of {plan.programs} random programs"
        figures.append(figure(name, ours, "x", peer=f"MetaSchedule: {number(theirs)}"))
    if failed or theirs_failed:
        name = f"{found.operator}: failed of {plan.programs} random programs"
        figures.append(figure(name, failed, "", aim=at_most(0), peer=f"MetaSchedule: {theirs_failed}"))
    return figures


def _final(name: str, final: Pair | None, bound: float) -> list[Figure]:
    if final is None:
        return []
    ratio = final.ours.ratio_to(final.theirs)
    peer = f"MetaSchedule: {_ms(final.theirs)}, ours: {_ms(final.ours)}"
    return [figure(name, ratio.value, "x", aim=at_most(bound), peer=peer, spread=ratio.spread)]


def _rates(name: str, rates: Rates) -> list[Figure]:
    ours, lowered, theirs = (each.per_s for each in (rates.ours, rates.lowered, rates.theirs))
    peer = f"MetaSchedule: {number(theirs.value)} /s"
    return [
        figure(
            f"{name}: valid programs sampled a second on one core",
            ours.value,
            "/s",
            aim=at_least(20_000),
            peer=peer,
            spread=ours.spread,
        ),
        figure(
            f"{name}: the same, one at a time and lowered",
            lowered.value,
            "/s",
            peer=peer,
            spread=lowered.spread,
        ),
    ]


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
