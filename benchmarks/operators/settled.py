"""Our search gone on with for long, to see how little is left to gain after few trials."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engines.tunefarm_search import Variant
from benchmarks.operators.means import mean
from benchmarks.operators.run import OURS
from benchmarks.operators.variants import compare_variants
from benchmarks.results.figures import Aim, Figure, at_most, figure
from benchmarks.timing.finals import SearchResult, milestones_up_to

AFTER = (16, 64, 256)
# Our search is done after so many trials: going on to so many in all gains little.
SETTLED_AFTER, SETTLED_OF = 64, 1000
LITTLE = at_most(1.03)


def milestones(trials: int) -> tuple[int, ...]:
    """After so many of the trials the best is timed beside that of all."""
    return milestones_up_to(trials, AFTER)


def run(operator: str, trials: int, rounds: int, threads: int, seed: int) -> tuple[SearchResult, ...]:
    """One search; see `compare_variants`."""
    return compare_variants(operator, {OURS: Variant()}, trials, milestones(trials), rounds, threads, seed)


def figures_of(found: Sequence[SearchResult], trials: int) -> list[Figure]:
    """How much slower the best after fewer trials is: of all operators together, then of each."""
    counts = [count for count in milestones(trials) if count < trials]
    overall = [each for count in counts for each in _overall(found, count, trials)]
    return overall + [each for side in found for count in counts for each in _operator(side, count, trials)]


def _overall(found: Sequence[SearchResult], count: int, trials: int) -> list[Figure]:
    ratios: dict[str, float | None] = {}
    for side in found:
        early, late = side.after(count), side.after(trials)
        ratios[side.search.operator] = early.timings.ratio_to(late.timings).value if early and late else None
    return mean(_name(count, trials), ratios, "x", _aim(count, trials))


def _operator(side: SearchResult, count: int, trials: int) -> list[Figure]:
    early, late = side.after(count), side.after(trials)
    if early is None or late is None:
        return []
    ratio = early.timings.ratio_to(late.timings)
    name = f"{side.search.operator}: {_name(count, trials)}"
    return [figure(name, ratio.value, "x", aim=_aim(count, trials), spread=ratio.spread)]


def _name(count: int, trials: int) -> str:
    return f"our latency after {count} trials relative to ours after {trials}"


def _aim(count: int, trials: int) -> Aim | None:
    return LITTLE if count == SETTLED_AFTER and trials >= SETTLED_OF else None
