"""What was found of both engines' searches, as figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.operators.libraries import Compared
from benchmarks.operators.means import mean
from benchmarks.operators.run import OperatorResult, Plan
from benchmarks.results.figures import Aim, Figure, at_least, at_most, figure, number
from benchmarks.timing.finals import SearchResult
from benchmarks.timing.interleaved import Median, Timings

QUALITY_AIMS: Mapping[int, Aim] = {8: at_least(1.5), 16: at_least(1.5), 64: at_least(1.05)}
NEVER_BELOW_AFTER, NEVER_BELOW = 64, at_least(0.97)
# Which search of ours is held against MetaSchedule's: in words, itself, what it should reach.
SOONER: tuple[tuple[str, Callable[[OperatorResult], SearchResult], Aim], ...] = (
    ("", lambda one: one.ours, at_least(10)),
    (", other shapes known", lambda one: one.warm, at_least(25)),
)
FASTER_TRIALS = at_least(5)
SCORED = at_least(50_000)


class Searched(Protocol):
    """What both engines' searches of one workload found."""

    @property
    def ours(self) -> SearchResult: ...

    @property
    def theirs(self) -> SearchResult: ...


@dataclass(frozen=True)
class TimeToMatch:
    """When a search was as fast as MetaSchedule at its end: `at_s` seconds and `trials` after its start.

    `ratio` says how many times as long MetaSchedule took for all of its trials, `own_ratio` until it had
    found its best program.
    """

    at_s: float
    trials: int
    ratio: float
    own_ratio: float


def figures_of(found: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    """What holds for all operators first, then the operators in their order."""
    return [*_overall(found, plan), *(each for one in found for each in _operator(one, plan))]


def correction(side: SearchResult) -> float | None:
    """By how much latencies in turns differ from those that a search measured, which the machine's mood at
    that time and the choice of the luckiest go into; None without finalists."""
    ratios = [each.timings.latency_s.value / each.searched_s for each in side.judged]
    return statistics.median(ratios) if ratios else None


def time_to_match(one: Searched, side: SearchResult, trials: int) -> TimeToMatch | None:
    """None when the search never was as fast, or either side has no finalist to compare."""
    goal, factor = one.theirs.after(trials), correction(side)
    if goal is None or factor is None:
        return None
    point = side.search.reached(goal.timings.latency_s.value / factor)
    if point is None or not point.at_s:
        return None
    theirs = one.theirs.search
    return TimeToMatch(
        point.at_s, point.trials, theirs.seconds / point.at_s, theirs.points[-1].at_s / point.at_s
    )


def quality(one: Searched, trials: int) -> Median | None:
    """MetaSchedule's latency over ours, after as many trials of each; None when either has no finalist."""
    ours, theirs = one.ours.after(trials), one.theirs.after(trials)
    return theirs.timings.ratio_to(ours.timings) if ours and theirs else None


def rates(one: OperatorResult) -> tuple[float, float] | None:
    """Trials a second of ours and of MetaSchedule's."""
    ours, theirs = one.ours.search.trials_per_s, one.theirs.search.trials_per_s
    return (ours, theirs) if ours and theirs else None


def _overall(found: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    return [
        *(each for trials in plan.milestones for each in _overall_quality(found, trials)),
        *_overall_sooner(found, plan),
        *_mean(found, "trials a second relative to MetaSchedule's", _rate_ratio, "x", FASTER_TRIALS),
        *_overall_spread(found),
        *_mean(found, "candidates scored a second on one core", _scored_per_s, "/s", SCORED),
    ]


def _mean(
    found: Sequence[OperatorResult],
    name: str,
    of: Callable[[OperatorResult], float | None],
    unit: str,
    aim: Aim | None = None,
) -> list[Figure]:
    return mean(name, {one.operator: of(one) for one in found}, unit, aim)


def _overall_quality(found: Sequence[OperatorResult], trials: int) -> list[Figure]:
    def ratio(one: OperatorResult) -> float | None:
        median = quality(one, trials)
        return median.value if median else None

    name = f"MetaSchedule's latency relative to ours after {trials} trials"
    figures = _mean(found, name, ratio, "x", QUALITY_AIMS.get(trials))
    ratios = {one.operator: value for one in found if (value := ratio(one)) is not None}
    if trials == NEVER_BELOW_AFTER and ratios:
        worst = min(ratios, key=lambda operator: ratios[operator])
        figures.append(figure(f"lowest of these: {name}", ratios[worst], "x", aim=NEVER_BELOW, peer=worst))
    lost = [one.operator for one in found if one.theirs.after(trials) and not one.ours.after(trials)]
    if lost:
        figures += _exceptions(f"had no program of ours after {trials} trials", lost, len(found))
    return figures


def _overall_sooner(found: Sequence[OperatorResult], plan: Plan) -> list[Figure]:
    return [each for words, side, aim in SOONER for each in _one_sooner(found, plan, words, side, aim)]


def _one_sooner(
    found: Sequence[OperatorResult],
    plan: Plan,
    words: str,
    side: Callable[[OperatorResult], SearchResult],
    aim: Aim,
) -> list[Figure]:
    times = {one.operator: time_to_match(one, side(one), plan.trials) for one in found}

    def ratio(one: OperatorResult) -> float | None:
        time = times[one.operator]
        return time.ratio if time else None

    def own_ratio(one: OperatorResult) -> float | None:
        time = times[one.operator]
        return time.own_ratio if time else None

    goals = [one.operator for one in found if one.theirs.after(plan.trials)]
    never = [operator for operator in goals if times[operator] is None]
    name = f"MetaSchedule's seconds for {plan.trials} trials relative to ours until as fast{words}"
    return [
        *_mean(found, name, ratio, "x", aim),
        *_mean(found, f"{name}, counting MetaSchedule's only until its best", own_ratio, "x"),
        *(_exceptions(f"never were as fast{words}", never, len(goals)) if goals else []),
    ]


def _exceptions(what: str, operators: Sequence[str], of: int) -> list[Figure]:
    """How many operators a mean says nothing of because ours failed; none of them should."""
    named = ", ".join(operators) or None
    return [figure(f"operators of {of} that {what}", len(operators), "", aim=at_most(0), peer=named)]


def _overall_spread(found: Sequence[OperatorResult]) -> list[Figure]:
    pairs = [pair for one in found for pair in one.precision]
    if not pairs:
        return []
    ours, theirs = (
        statistics.median(_spread(timings) for timings in side)
        for side in ([pair.ours for pair in pairs], [pair.theirs for pair in pairs])
    )
    name = f"spread of measuring a program again (p90 - p10 over the median), median of {len(pairs)} programs"
    return [figure(name, 100 * ours, "%", peer=f"MetaSchedule: {number(100 * theirs)} %")]


def _rate_ratio(one: OperatorResult) -> float | None:
    both = rates(one)
    return both[0] / both[1] if both else None


def _scored_per_s(one: OperatorResult) -> float | None:
    return one.scored.ours.per_s.value if one.scored else None


def _operator(one: OperatorResult, plan: Plan) -> list[Figure]:
    return [
        *(each for trials in plan.milestones for each in _quality(one, trials)),
        *(each for words, side, _ in SOONER for each in _sooner(one, side(one), plan, words)),
        *_rate(one),
        *_precision(one),
        *_scored(one),
        *(each for compared in one.libraries for each in _library(one.operator, compared)),
    ]


def _quality(one: OperatorResult, trials: int) -> list[Figure]:
    ratio = quality(one, trials)
    ours, theirs = one.ours.after(trials), one.theirs.after(trials)
    if ratio is None or ours is None or theirs is None:
        return []
    return [
        figure(
            f"{one.operator}: MetaSchedule's latency relative to ours after {trials} trials",
            ratio.value,
            "x",
            aim=NEVER_BELOW if trials == NEVER_BELOW_AFTER else None,
            peer=f"MetaSchedule: {_ms(theirs.timings)}, ours: {_ms(ours.timings)}",
            spread=ratio.spread,
        )
    ]


def _sooner(one: OperatorResult, side: SearchResult, plan: Plan, words: str) -> list[Figure]:
    time = time_to_match(one, side, plan.trials)
    if time is None:
        return []
    name = f"{one.operator}: MetaSchedule's seconds relative to ours until as fast{words}"
    theirs = f"MetaSchedule: {number(one.theirs.search.seconds)} s, {number(one.set_up_s)} s of it set-up"
    ours = f"ours: {number(time.at_s)} s, {time.trials} trials"
    return [figure(name, time.ratio, "x", peer=f"{theirs}; {ours}")]


def _rate(one: OperatorResult) -> list[Figure]:
    both = rates(one)
    if both is None:
        return []
    searched = f"{one.theirs.search.trials} trials in {number(one.theirs.search.seconds)} s"
    peer = f"MetaSchedule: {number(both[1])} /s, {searched}"
    return [figure(f"{one.operator}: trials a second", both[0], "/s", peer=peer)]


def _precision(one: OperatorResult) -> list[Figure]:
    name = f"{one.operator}: spread of measuring a program again"
    return [
        figure(
            f"{name}, {whose} best",
            100 * _spread(pair.ours),
            "%",
            peer=f"MetaSchedule: {number(100 * _spread(pair.theirs))} %",
        )
        for whose, pair in zip(("our", "MetaSchedule's"), one.precision, strict=False)
    ]


def _scored(one: OperatorResult) -> list[Figure]:
    if one.scored is None:
        return []
    ours, theirs = one.scored.ours.per_s, one.scored.theirs.per_s
    name = f"{one.operator}: candidates scored a second on one core"
    peer = f"MetaSchedule: {number(theirs.value)} /s"
    return [figure(name, ours.value, "/s", aim=SCORED, peer=peer, spread=ours.spread)]


def _library(operator: str, compared: Compared) -> list[Figure]:
    shape = "x".join(map(str, compared.shape))
    ratio = compared.theirs[compared.fastest].ratio_to(compared.ours)
    others = [f"{name}: {_ms(timings)}" for name, timings in compared.theirs.items()]
    absent = [f"{name} is not installed" for name in compared.missing]
    return [
        figure(
            f"{operator} {shape}: latency of {compared.fastest} relative to ours",
            ratio.value,
            "x",
            aim=at_least(1.0),
            peer="; ".join([f"ours: {_ms(compared.ours)}", *others, *absent]),
            spread=ratio.spread,
        )
    ]


def _spread(timings: Timings) -> float:
    """The 10th to the 90th percentile of the turns, over their median."""
    median = timings.latency_s
    return (median.spread[1] - median.spread[0]) / median.value


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
