"""Figures of both engines' searches of operators."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.operators.run import OperatorResult, Plan
from benchmarks.results.figures import Aim, Figure, at_least, at_most, figure, mean_figure, number
from benchmarks.timing.finals import SearchResult
from benchmarks.timing.interleaved import Median, Timings

QUALITY_AIMS: Mapping[int, Aim] = {8: at_least(1.5), 16: at_least(1.5), 64: at_least(1.05)}
NEVER_BELOW_AFTER, NEVER_BELOW = 64, at_least(0.97)
# The searches of ours that are compared with MetaSchedule's: suffix of the figure's name, search, aim.
SOONER: tuple[tuple[str, Callable[[OperatorResult], SearchResult], Aim], ...] = (
    ("", lambda result: result.ours, at_least(10)),
    (", other shapes known", lambda result: result.warm, at_least(25)),
)
FASTER_TRIALS = at_least(5)
SCORED = at_least(50_000)


class Searched(Protocol):
    """Both engines' searches of one workload."""

    @property
    def ours(self) -> SearchResult: ...

    @property
    def theirs(self) -> SearchResult: ...


@dataclass(frozen=True)
class TimeToMatch:
    """When a search was as fast as MetaSchedule's best: `at_s` seconds and `trials` after its start.

    `ratio` is MetaSchedule's seconds for all of its trials over `at_s`, `own_ratio` its seconds until it had
    found its best program over `at_s`.
    """

    at_s: float
    trials: int
    ratio: float
    own_ratio: float


def figures_of(results: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    """Return the means over all operators first, then the figures of each operator."""
    figures = [each for trials in plan.milestones for each in _mean_quality(results, trials)]
    for suffix, search, aim in SOONER:
        figures += _mean_time_to_match(results, plan, suffix, search, aim)
    rates = {result.operator: _rate_ratio(result) for result in results}
    figures += mean_figure("trials a second relative to MetaSchedule's", rates, "x", FASTER_TRIALS)
    figures += _median_spread(results)
    scored = {one.operator: one.scored.ours.per_s.value if one.scored else None for one in results}
    figures += mean_figure("candidates scored a second on one core", scored, "/s", SCORED)
    return figures + [each for result in results for each in _figures_of_operator(result, plan)]


def correction(search: SearchResult) -> float | None:
    """Return the median over the finalists of latency in turns / latency as the search measured it.

    A search's own measurements depend on the machine's state at the time and favour lucky programs. None
    without finalists.
    """
    ratios = [each.timings.latency_s.value / each.searched_s for each in search.milestones]
    return statistics.median(ratios) if ratios else None


def time_to_match(result: Searched, search: SearchResult, trials: int) -> TimeToMatch | None:
    """Return when `search` was as fast as MetaSchedule's best after `trials`.

    None when it never was, or when either search has no finalist to compare.
    """
    goal, factor = result.theirs.after(trials), correction(search)
    if goal is None or factor is None:
        return None
    point = search.curve.reached(goal.timings.latency_s.value / factor)
    if point is None or not point.at_s:
        return None
    theirs = result.theirs.curve
    own_ratio = theirs.points[-1].at_s / point.at_s
    return TimeToMatch(point.at_s, point.trials, theirs.seconds / point.at_s, own_ratio)


def quality(result: Searched, trials: int) -> Median | None:
    """Return MetaSchedule's latency over ours after `trials` of each; None when either has no finalist."""
    ours, theirs = result.ours.after(trials), result.theirs.after(trials)
    return theirs.timings.ratio_to(ours.timings) if ours and theirs else None


def _rate_ratio(result: OperatorResult) -> float | None:
    ours, theirs = result.ours.curve.trials_per_s, result.theirs.curve.trials_per_s
    return ours / theirs if ours and theirs else None


def _mean_quality(results: Sequence[OperatorResult], trials: int) -> list[Figure]:
    medians = {result.operator: quality(result, trials) for result in results}
    ratios = {operator: median.value if median else None for operator, median in medians.items()}
    name = f"MetaSchedule's latency relative to ours after {trials} trials"
    figures = mean_figure(name, ratios, "x", QUALITY_AIMS.get(trials))
    known = {operator: ratio for operator, ratio in ratios.items() if ratio is not None}
    if trials == NEVER_BELOW_AFTER and known:
        worst = min(known, key=lambda operator: known[operator])
        figures.append(figure(f"lowest of these: {name}", known[worst], "x", aim=NEVER_BELOW, peer=worst))
    lost = [one.operator for one in results if one.theirs.after(trials) and not one.ours.after(trials)]
    if lost:
        figures.append(_exceptions(f"had no program of ours after {trials} trials", lost, len(results)))
    return figures


def _mean_time_to_match(
    results: Sequence[OperatorResult],
    plan: Plan,
    suffix: str,
    search: Callable[[OperatorResult], SearchResult],
    aim: Aim,
) -> list[Figure]:
    times = {result.operator: time_to_match(result, search(result), plan.trials) for result in results}
    name = f"MetaSchedule's seconds for {plan.trials} trials relative to ours until as fast{suffix}"
    figures = mean_figure(name, {key: time.ratio if time else None for key, time in times.items()}, "x", aim)
    own_ratios = {key: time.own_ratio if time else None for key, time in times.items()}
    figures += mean_figure(f"{name}, counting MetaSchedule's only until its best", own_ratios, "x")
    goals = [result.operator for result in results if result.theirs.after(plan.trials)]
    if goals:
        never = [operator for operator in goals if times[operator] is None]
        figures.append(_exceptions(f"never were as fast{suffix}", never, len(goals)))
    return figures


def _exceptions(what: str, operators: Sequence[str], count: int) -> Figure:
    """Return how many of `count` operators a mean leaves out because ours failed; none of them should."""
    peer = ", ".join(operators) or None
    return figure(f"operators of {count} that {what}", len(operators), "", aim=at_most(0), peer=peer)


def _median_spread(results: Sequence[OperatorResult]) -> list[Figure]:
    pairs = [pair for result in results for pair in result.precision]
    if not pairs:
        return []
    ours = statistics.median(_spread(pair.ours) for pair in pairs)
    theirs = statistics.median(_spread(pair.theirs) for pair in pairs)
    name = f"spread of measuring a program again (p90 - p10 over the median), median of {len(pairs)} programs"
    return [figure(name, 100 * ours, "%", peer=f"MetaSchedule: {number(100 * theirs)} %")]


def _figures_of_operator(result: OperatorResult, plan: Plan) -> list[Figure]:
    figures = [each for trials in plan.milestones for each in _quality(result, trials)]
    for suffix, search, _ in SOONER:
        figures += _time_to_match(result, search(result), plan, suffix)
    ours, theirs = result.ours.curve, result.theirs.curve
    if ours.trials_per_s and theirs.trials_per_s:
        basis = f"{theirs.trials} trials in {number(theirs.seconds)} s"
        peer = f"MetaSchedule: {number(theirs.trials_per_s)} /s, {basis}"
        figures.append(figure(f"{result.operator}: trials a second", ours.trials_per_s, "/s", peer=peer))
    for whose, pair in zip(("our", "MetaSchedule's"), result.precision, strict=False):
        name = f"{result.operator}: spread of measuring a program again, {whose} best"
        peer = f"MetaSchedule: {number(100 * _spread(pair.theirs))} %"
        figures.append(figure(name, 100 * _spread(pair.ours), "%", peer=peer))
    if result.scored is not None:
        own, other = result.scored.ours.per_s, result.scored.theirs.per_s
        name = f"{result.operator}: candidates scored a second on one core"
        peer = f"MetaSchedule: {number(other.value)} /s"
        figures.append(figure(name, own.value, "/s", aim=SCORED, peer=peer, spread=own.spread))
    for compared in result.libraries:
        shape = "x".join(map(str, compared.shape))
        ratio = compared.theirs[compared.fastest].ratio_to(compared.ours)
        latencies = [f"{name}: {_ms(timings)}" for name, timings in compared.theirs.items()]
        absent = [f"{name} is not installed" for name in compared.missing]
        peer = "; ".join([f"ours: {_ms(compared.ours)}", *latencies, *absent])
        name = f"{result.operator} {shape}: latency of {compared.fastest} relative to ours"
        figures.append(figure(name, ratio.value, "x", aim=at_least(1.0), peer=peer, spread=ratio.spread))
    return figures


def _quality(result: OperatorResult, trials: int) -> list[Figure]:
    ratio = quality(result, trials)
    ours, theirs = result.ours.after(trials), result.theirs.after(trials)
    if ratio is None or ours is None or theirs is None:
        return []
    name = f"{result.operator}: MetaSchedule's latency relative to ours after {trials} trials"
    aim = NEVER_BELOW if trials == NEVER_BELOW_AFTER else None
    peer = f"MetaSchedule: {_ms(theirs.timings)}, ours: {_ms(ours.timings)}"
    return [figure(name, ratio.value, "x", aim=aim, peer=peer, spread=ratio.spread)]


def _time_to_match(result: OperatorResult, search: SearchResult, plan: Plan, suffix: str) -> list[Figure]:
    time = time_to_match(result, search, plan.trials)
    if time is None:
        return []
    name = f"{result.operator}: MetaSchedule's seconds relative to ours until as fast{suffix}"
    seconds, set_up_s = number(result.theirs.curve.seconds), number(result.set_up_s)
    theirs = f"MetaSchedule: {seconds} s, {set_up_s} s of it set-up"
    peer = f"{theirs}; ours: {number(time.at_s)} s, {time.trials} trials"
    return [figure(name, time.ratio, "x", peer=peer)]


def _spread(timings: Timings) -> float:
    """Return the 10th to the 90th percentile of the turns over their median."""
    median = timings.latency_s
    return (median.spread[1] - median.spread[0]) / median.value


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
