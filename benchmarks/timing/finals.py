"""The best programs of several searches of one operator, timed in turns, so that they can be compared."""

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

ANY_BLOCK = Block()  # finalists repeat as often as the bench finds right
REST_S = 0.02


@dataclass(frozen=True)
class Milestone:
    """The best of a search after so many trials: as the search timed it, and timed in turns."""

    trials: int
    searched_s: float
    timings: Timings


@dataclass(frozen=True)
class SearchResult:
    """One search, and its best after every milestone at which it had one."""

    search: Search
    judged: tuple[Milestone, ...]

    def after(self, trials: int) -> Milestone | None:
        return next((each for each in self.judged if each.trials == trials), None)


@dataclass(frozen=True)
class Trials:
    """What a search tried, and after how many trials its best is judged."""

    tried: Sequence[Trial]
    milestones: Sequence[int]


def milestones_up_to(trials: int, counts: Sequence[int]) -> tuple[int, ...]:
    """The milestones of a search: the counts that come before its end, and its end."""
    return tuple(sorted({count for count in counts if count < trials} | {trials}))


def time_best_programs(
    measurer: ProgramMeasurer, operator: str, searches: Mapping[str, Trials], rounds: int, errors: list[str]
) -> dict[str, SearchResult]:
    """The best of every search after every milestone, all in turns; a program that several found once.

    `errors` is told of those that fail or whose results are wrong: they are nobody's best.
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
    judged: dict[str, list[Milestone]] = {name: [] for name in searches}
    for (name, count), found in chosen.items():
        judged[name] += [
            Milestone(count, median_seconds(searches[name].tried)[one], timings[numbers[one]])
            for one in found
            if one in numbers
        ]
    return {
        name: SearchResult(Search.of(operator, name, _best_known(trials.tried)), tuple(judged[name]))
        for name, trials in searches.items()
    }


def verified(
    measurer: ProgramMeasurer, candidates: Sequence[Candidate], errors: list[str]
) -> dict[Candidate, Finalist]:
    """Those that build and whose results are right, each once; `errors` is told of the others."""
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
    """One, or none where all failed."""
    return fastest(list(median_seconds(trials).items()), 1)


def median_seconds(trials: Sequence[Trial]) -> dict[Candidate, float]:
    """The median of all that was measured of each candidate, in seconds, inf for a failure."""
    seen: defaultdict[Candidate, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.candidate is not None:
            seen[trial.candidate].append(trial.secs)
    return {candidate: statistics.median(secs) for candidate, secs in seen.items()}


def _best_known(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    """When each trial was known, and how fast the best of all so far was then held to be."""
    return [
        (trial.at_s, min(median_seconds(trials[:count]).values(), default=math.inf))
        for count, trial in enumerate(trials, start=1)
    ]
