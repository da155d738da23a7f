"""Figures of both engines' spaces of programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.results.figures import Figure, at_least, at_most, figure, number
from benchmarks.space.run import OperatorResult, Plan
from benchmarks.timing.interleaved import Pair, Timings

# Operators that vectorized exponentials and reductions should make twice as fast.
TWICE = ("softmax", "layer_norm", "GELU", "attention")


def figures_of(results: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    """Return the geometric mean first, then the figures of each operator."""
    figures = []
    pairs = {one.operator: (density(one.ours_s), density(one.theirs_s)) for one in results}
    both = {operator: pair for operator, pair in pairs.items() if all(map(math.isfinite, pair))}
    if both:
        ours, theirs = (statistics.geometric_mean(side) for side in zip(*both.values(), strict=True))
        left_out = [operator for operator in pairs if operator not in both]
        without = f"; without {', '.join(left_out)}, where most failed" if left_out else ""
        name = f"geometric mean of {len(both)} operators: median over best of {plan.programs} random programs"
        figures += [
            figure(name, ours, "x", peer=f"MetaSchedule: {number(theirs)}{without}"),
            figure(f"{name}, relative to MetaSchedule", ours / theirs, "x", aim=at_most(0.5)),
        ]
    return figures + [each for result in results for each in _figures_of_operator(result, plan)]


def density(secs: Sequence[float]) -> float:
    """Return the median over the best; inf when half of the programs failed."""
    best = min(secs)
    return statistics.median(secs) / best if math.isfinite(best) else math.inf


def _figures_of_operator(result: OperatorResult, plan: Plan) -> list[Figure]:
    operator, programs = result.operator, plan.programs
    figures = []
    ours, theirs = density(result.ours_s), density(result.theirs_s)
    if math.isfinite(ours):
        name = f"{operator}: median over best of {programs} random programs"
        figures.append(figure(name, ours, "x", peer=f"MetaSchedule: {number(theirs)}"))
    failed, theirs_failed = (sum(map(math.isinf, side)) for side in (result.ours_s, result.theirs_s))
    if failed or theirs_failed:
        name = f"{operator}: failed of {programs} random programs"
        figures.append(figure(name, failed, "", aim=at_most(0), peer=f"MetaSchedule: {theirs_failed}"))
    name = f"{operator}: best of {programs} random programs relative to MetaSchedule's"
    figures += _final(name, result.random, 1)
    name = f"{operator}: best known after {plan.trials} trials relative to MetaSchedule's"
    figures += _final(name, result.ceiling, 0.5 if operator in TWICE else 1)
    if result.rates is not None:
        sampled, lowered = result.rates.ours.per_s, result.rates.lowered.per_s
        peer = f"MetaSchedule: {number(result.rates.theirs.per_s.value)} /s"
        name = f"{operator}: valid programs sampled a second on one core"
        aim = at_least(20_000)
        figures.append(figure(name, sampled.value, "/s", aim=aim, peer=peer, spread=sampled.spread))
        name = f"{operator}: the same, one at a time and lowered"
        figures.append(figure(name, lowered.value, "/s", peer=peer, spread=lowered.spread))
    return figures


def _final(name: str, final: Pair | None, bound: float) -> list[Figure]:
    if final is None:
        return []
    ratio = final.ours.ratio_to(final.theirs)
    peer = f"MetaSchedule: {_ms(final.theirs)}, ours: {_ms(final.ours)}"
    return [figure(name, ratio.value, "x", aim=at_most(bound), peer=peer, spread=ratio.spread)]


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
