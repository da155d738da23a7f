"""Figures of both engines' searches of operators."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.operators.run import THEIRS, OperatorResult, Plan
from benchmarks.results.figures import (
    Aim,
    Figure,
    at_least,
    at_most,
    figure,
    mean_figure,
    number,
    ratio_figure,
)
from benchmarks.results.metrics import (
    LOWEST_SPEED_UP,
    NEVER_REACHED,
    SPEED_UP,
    TRIALS_A_SECOND,
    TUNING_SPEED_UP,
    after_trials,
    to_reach,
)
from benchmarks.timing.finals import SearchResult
from benchmarks.timing.interleaved import Median, Timings

QUALITY_AIMS: Mapping[int, Aim] = {8: at_least(1.5), 16: at_least(1.5), 64: at_least(1.05)}
NEVER_BELOW_AFTER, NEVER_BELOW = 64, at_least(0.97)
SCORED_A_SECOND = "candidates scored a second on one core"
SPREAD = "spread of repeated measurements"
# Our searches that are compared with MetaSchedule's: the figure's condition, the search, and the aim.
SOONER: tuple[tuple[str, Callable[[OperatorResult], SearchResult], Aim], ...] = (
    ("", lambda result: result.ours, at_least(10)),
    ("other shapes known", lambda result: result.warm, at_least(25)),
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
    """The time at which a search was as fast as MetaSchedule's best: `at_s` seconds and `trials` after its
    start.

    `ratio` is MetaSchedule's seconds for all of its trials divided by `at_s`. `own_ratio` is its seconds
    until it found its best program divided by `at_s`.
    """

    at_s: float
    trials: int
    ratio: float
    own_ratio: float


def figures_of(results: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    """Return the means over all operators first, then the figures of each operator."""
    figures = [each for trials in plan.milestones for each in _mean_quality(results, trials)]
    for condition, search, aim in SOONER:
        figures += _mean_time_to_match(results, plan, condition, search, aim)
    rates = {result.operator: _rate_ratio(result) for result in results}
    figures += mean_figure(TRIALS_A_SECOND, rates, "x", aim=FASTER_TRIALS, peer=THEIRS)
    figures += _median_spread(results)
    scored = {one.operator: one.scored.ours.per_s.value if one.scored else None for one in results}
    figures += mean_figure(SCORED_A_SECOND, scored, "/s", aim=SCORED)
    return figures + [each for result in results for each in _figures_of_operator(result, plan)]


def correction(search: SearchResult) -> float | None:
    """Return the median over the finalists of latency in turns / latency as the search measured it.

    A search's own measurements depend on the machine's state and favour lucky programs. Return None without
    finalists.
    """
    ratios = [each.timings.latency_s.value / each.searched_s for each in search.milestones]
    return statistics.median(ratios) if ratios else None


def time_to_match(result: Searched, search: SearchResult, trials: int) -> TimeToMatch | None:
    """Return the time at which `search` was as fast as MetaSchedule's best after `trials`.

    Return None if it never was, or if one of the searches has no finalist.
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
    """Return MetaSchedule's latency divided by ours after `trials` of each; None if one has no finalist."""
    ours, theirs = result.ours.after(trials), result.theirs.after(trials)
    return theirs.timings.ratio_to(ours.timings) if ours and theirs else None


def _rate_ratio(result: OperatorResult) -> float | None:
    ours, theirs = result.ours.curve.trials_per_s, result.theirs.curve.trials_per_s
    return ours / theirs if ours and theirs else None


def _mean_quality(results: Sequence[OperatorResult], trials: int) -> list[Figure]:
    medians = {result.operator: quality(result, trials) for result in results}
    ratios = {operator: median.value if median else None for operator, median in medians.items()}
    condition, aim = after_trials(trials), QUALITY_AIMS.get(trials)
    figures = mean_figure(SPEED_UP, ratios, "x", aim=aim, peer=THEIRS, condition=condition)
    known = {operator: ratio for operator, ratio in ratios.items() if ratio is not None}
    if trials == NEVER_BELOW_AFTER and known:
        worst = min(known, key=lambda operator: known[operator])
        figures.append(
            figure(
                LOWEST_SPEED_UP,
                known[worst],
                "x",
                peer=THEIRS,
                condition=condition,
                count=len(known),
                aim=NEVER_BELOW,
                note=worst,
            )
        )
    lost = [one.operator for one in results if one.theirs.after(trials) and not one.ours.after(trials)]
    if lost:
        figures.append(_exceptions("searches without a program of ours", condition, lost, len(results)))
    return figures


def _mean_time_to_match(
    results: Sequence[OperatorResult],
    plan: Plan,
    known: str,
    search: Callable[[OperatorResult], SearchResult],
    aim: Aim,
) -> list[Figure]:
    times = {result.operator: time_to_match(result, search(result), plan.trials) for result in results}
    ratios = {key: time.ratio if time else None for key, time in times.items()}
    own_ratios = {key: time.own_ratio if time else None for key, time in times.items()}
    condition = _joined(to_reach(plan.trials), known)
    figures = mean_figure(TUNING_SPEED_UP, ratios, "x", aim=aim, peer=THEIRS, condition=condition)
    condition = _joined(condition, "MetaSchedule's time until its best program")
    figures += mean_figure(TUNING_SPEED_UP, own_ratios, "x", peer=THEIRS, condition=condition)
    goals = [result.operator for result in results if result.theirs.after(plan.trials)]
    if goals:
        never = [operator for operator in goals if times[operator] is None]
        figures.append(_exceptions(NEVER_REACHED, known, never, len(goals)))
    return figures


def _exceptions(metric: str, condition: str, operators: Sequence[str], count: int) -> Figure:
    """Return the figure of the number of `count` operators that a mean leaves out because our search
    failed."""
    return figure(
        metric,
        len(operators),
        f"of {count}",
        condition=condition,
        count=count,
        aim=at_most(0),
        note=", ".join(operators),
    )


def _median_spread(results: Sequence[OperatorResult]) -> list[Figure]:
    pairs = [pair for result in results for pair in result.precision]
    if not pairs:
        return []
    ours = statistics.median(_spread(pair.ours) for pair in pairs)
    theirs = statistics.median(_spread(pair.theirs) for pair in pairs)
    note = f"{THEIRS}: {number(100 * theirs)} %; 10th to 90th percentile over the median"
    median = f"median of {len(pairs)} programs"
    return [figure(SPREAD, 100 * ours, "%", subject=median, count=len(pairs), note=note)]


def _figures_of_operator(result: OperatorResult, plan: Plan) -> list[Figure]:
    figures = quality_figures(result, result.operator, plan.milestones, aims=True)
    for known, search, _ in SOONER:
        figures += _time_to_match(result, search(result), plan, known)
    ours, theirs = result.ours.curve, result.theirs.curve
    if ours.trials_per_s and theirs.trials_per_s:
        basis = f"{theirs.trials} trials in {number(theirs.seconds)} s"
        note = f"{THEIRS}: {number(theirs.trials_per_s)} /s, {basis}"
        figures.append(figure(TRIALS_A_SECOND, ours.trials_per_s, "/s", subject=result.operator, note=note))
    for whose, pair in zip(("our", "MetaSchedule's"), result.precision, strict=False):
        figures.append(
            figure(
                SPREAD,
                100 * _spread(pair.ours),
                "%",
                subject=result.operator,
                condition=f"{whose} best program",
                note=f"{THEIRS}: {number(100 * _spread(pair.theirs))} %",
            )
        )
    if result.scored is not None:
        own, other = result.scored.ours.per_s, result.scored.theirs.per_s
        figures.append(
            figure(
                SCORED_A_SECOND,
                own.value,
                "/s",
                subject=result.operator,
                aim=SCORED,
                spread=own.spread,
                note=f"{THEIRS}: {number(other.value)} /s",
            )
        )
    for compared in result.libraries:
        shape = "x".join(map(str, compared.shape))
        ratio = compared.theirs[compared.fastest].ratio_to(compared.ours)
        latencies = [f"{name}: {_ms(timings)}" for name, timings in compared.theirs.items()]
        absent = [f"{name} is not installed" for name in compared.missing]
        note = "; ".join([f"ours: {_ms(compared.ours)}", *latencies, *absent])
        subject = f"{result.operator} {shape}"
        figures.append(ratio_figure(SPEED_UP, ratio, compared.fastest, subject, aim=at_least(1.0), note=note))
    return figures


def quality_figures(
    result: Searched, subject: str, after: Sequence[int], *, device_class: str = "", aims: bool = False
) -> list[Figure]:
    """Return the figures of MetaSchedule's latency divided by ours, for each number of trials at which both
    have a program."""
    figures = []
    for trials in after:
        ratio = quality(result, trials)
        ours, theirs = result.ours.after(trials), result.theirs.after(trials)
        if ratio is None or ours is None or theirs is None:
            continue
        figures.append(
            ratio_figure(
                SPEED_UP,
                ratio,
                THEIRS,
                subject,
                condition=after_trials(trials),
                device_class=device_class,
                aim=NEVER_BELOW if aims and trials == NEVER_BELOW_AFTER else None,
                note=f"{THEIRS}: {_ms(theirs.timings)}, ours: {_ms(ours.timings)}",
            )
        )
    return figures


def _time_to_match(result: OperatorResult, search: SearchResult, plan: Plan, known: str) -> list[Figure]:
    time = time_to_match(result, search, plan.trials)
    if time is None:
        return []
    seconds, set_up_s = number(result.theirs.curve.seconds), number(result.set_up_s)
    theirs = f"{THEIRS}: {seconds} s, {set_up_s} s of it set-up"
    found = figure(
        TUNING_SPEED_UP,
        time.ratio,
        "x",
        peer=THEIRS,
        subject=result.operator,
        condition=_joined(to_reach(plan.trials), known),
        note=f"{theirs}; ours: {number(time.at_s)} s, {time.trials} trials",
    )
    return [found]


def _joined(*conditions: str) -> str:
    return ", ".join(filter(None, conditions))


def _spread(timings: Timings) -> float:
    """Return the spread of the turns, from the 10th to the 90th percentile, divided by their median."""
    median = timings.latency_s
    return (median.spread[1] - median.spread[0]) / median.value


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
