"""Time the best programs of several searches of one operator in turns, so that they can be compared."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results.searches import Search
from benchmarks.timing.interleaved import Block, Timings, measure
from benchmarks.timing.measurer import Candidate, Finalist, ProgramMeasurer, Trial, fastest
from core.measurement import Measurement, Outcome

ANY_BLOCK = Block()  # the runner decides how often a finalist is repeated
REST_S = 0.02


@dataclass(frozen=True)
class Milestone:
    """The best program of a search after `trials`: seconds as the search timed it, and timed in turns."""

    trials: int
    searched_s: float
    timings: Timings


@dataclass(frozen=True)
class SearchResult:
    """The curve of one search, and each milestone at which it had a program that works."""

    curve: Search
    milestones: tuple[Milestone, ...]

    def after(self, trials: int) -> Milestone | None:
        return next((each for each in self.milestones if each.trials == trials), None)


@dataclass(frozen=True)
class Trials:
    """All trials of a search in order, and after how many of them its best is timed again."""

    tried: Sequence[Trial]
    milestones: Sequence[int]


def milestones_up_to(trials: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the counts below `trials`, and `trials`."""
    return tuple(sorted({count for count in counts if count < trials} | {trials}))


def time_best_programs(
    measurer: ProgramMeasurer,
    operator: str,
    searches: Mapping[str, Trials],
    rounds: int,
    errors: list[str],
) -> dict[str, SearchResult]:
    """Time the best program of every search after every milestone in turns, each program once.

    Programs that fail or whose results are wrong have no milestone; their reasons are appended to `errors`.
    """
    chosen = {
        (name, count): best(trials.tried[:count])
        for name, trials in searches.items()
        for count in trials.milestones
    }
    finalists = verified(measurer, [one for found in chosen.values() for one in found], errors)
    numbers = {candidate: str(number) for number, candidate in enumerate(finalists)}
    contestants = {numbers[candidate]: finalist for candidate, finalist in finalists.items()}
    timings = measure(contestants, rounds, ANY_BLOCK, rest_s=REST_S) if contestants else {}
    milestones: dict[str, list[Milestone]] = {name: [] for name in searches}
    for (name, count), found in chosen.items():
        milestones[name] += [
            Milestone(count, median_seconds(searches[name].tried)[one], timings[numbers[one]])
            for one in found
            if one in numbers
        ]
    results = {}
    for name, trials in searches.items():
        best_known = [
            (trial.at_s, min(median_seconds(trials.tried[:count]).values(), default=math.inf))
            for count, trial in enumerate(trials.tried, start=1)
        ]
        results[name] = SearchResult(Search.of(operator, name, best_known), tuple(milestones[name]))
    return results


def verified(
    measurer: ProgramMeasurer, candidates: Sequence[Candidate], errors: list[str]
) -> dict[Candidate, Finalist]:
    """Return the candidates that build and whose results are right, each once; append the others' reasons to
    `errors`."""
    wanted = list(dict.fromkeys(candidates))
    found = {}
    for candidate, built in zip(wanted, measurer.build(wanted), strict=True):
        measurement = measurer.run(built)
        if isinstance(built, Measurement) or measurement.outcome is not Outcome.OK:
            errors.append(f"a finalist: {measurement.outcome}: {measurement.error}")
        else:
            found[candidate] = Finalist(measurer, built)
    return found


def best(trials: Sequence[Trial]) -> list[Candidate]:
    """Return the fastest candidate, in a list that is empty when all failed."""
    return fastest(list(median_seconds(trials).items()), 1)


def median_seconds(trials: Sequence[Trial]) -> dict[Candidate, float]:
    """Return the median of all measurements of each candidate in seconds, inf for a failure."""
    measured: defaultdict[Candidate, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.candidate is not None:
            measured[trial.candidate].append(trial.run_s)
    return {candidate: statistics.median(secs) for candidate, secs in measured.items()}
