"""Figures of both engines' spaces of programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.results.figures import Figure, at_least, at_most, figure, number, ratio_figure
from benchmarks.results.metrics import LATENCY, after_trials
from benchmarks.space.run import OperatorResult, Plan
from benchmarks.timing.interleaved import Pair, Timings

# Operators that vectorized exponentials and reductions should make twice as fast.
THEIRS = "MetaSchedule"
MEDIAN_OVER_BEST = "median over best latency"
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
        subject, condition = f"geometric mean of {len(both)} operators", _random(plan.programs)
        note = f"{THEIRS}: {number(theirs)}{without}"
        figures += [
            figure(MEDIAN_OVER_BEST, ours, "x", subject=subject, condition=condition, note=note),
            figure(
                MEDIAN_OVER_BEST,
                ours / theirs,
                "x",
                peer=THEIRS,
                subject=subject,
                condition=condition,
                count=len(both),
                aim=at_most(0.5),
            ),
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
        condition, note = _random(programs), f"{THEIRS}: {number(theirs)}"
        figures.append(figure(MEDIAN_OVER_BEST, ours, "x", subject=operator, condition=condition, note=note))
    failed, theirs_failed = (sum(map(math.isinf, side)) for side in (result.ours_s, result.theirs_s))
    if failed or theirs_failed:
        unit, note = f"of {programs}", f"{THEIRS}: {theirs_failed}"
        figures.append(
            figure("random programs that failed", failed, unit, subject=operator, aim=at_most(0), note=note)
        )
    best = f"of the best of {programs} random programs"
    figures += _final(operator, best, result.random, 1)
    figures += _final(operator, after_trials(plan.trials), result.ceiling, 0.5 if operator in TWICE else 1)
    if result.rates is not None:
        note = f"{THEIRS}: {number(result.rates.theirs.per_s.value)} /s"
        for rate, how, aim in (
            (result.rates.ours.per_s, "", at_least(20_000)),
            (result.rates.lowered.per_s, "one at a time and lowered", None),
        ):
            figures.append(
                figure(
                    "valid programs sampled a second on one core",
                    rate.value,
                    "/s",
                    subject=operator,
                    condition=how,
                    aim=aim,
                    spread=rate.spread,
                    note=note,
                )
            )
    return figures


def _random(programs: int) -> str:
    return f"of {programs} random programs"


def _final(operator: str, condition: str, final: Pair | None, bound: float) -> list[Figure]:
    if final is None:
        return []
    ratio = final.ours.ratio_to(final.theirs)
    note = f"{THEIRS}: {_ms(final.theirs)}, ours: {_ms(final.ours)}"
    return [
        ratio_figure(LATENCY, ratio, THEIRS, operator, condition=condition, aim=at_most(bound), note=note)
    ]


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
