"""Compare our search's best program after few trials with its best after many, to see how much is left to
gain."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engines.tunefarm_search import Variant
from benchmarks.operators.run import OURS
from benchmarks.operators.variants import compare_variants
from benchmarks.results.figures import Figure, at_most, mean_figure, ratio_figure
from benchmarks.timing.finals import SearchResult, milestones_up_to

AFTER = (16, 64, 256)
# A search of SETTLED_OF trials should hardly improve after SETTLED_AFTER trials.
SETTLED_AFTER, SETTLED_OF = 64, 1000
LITTLE = at_most(1.03)


def run(operator: str, trials: int, rounds: int, threads: int, seed: int) -> tuple[SearchResult, ...]:
    """Run one search; see `compare_variants`."""
    after = milestones_up_to(trials, AFTER)
    return compare_variants(operator, {OURS: Variant()}, trials, after, rounds, threads, seed)


def figures_of(results: Sequence[SearchResult], trials: int) -> list[Figure]:
    """Return how much slower the best after fewer trials is: the mean of all operators, then each
    operator."""
    means: list[Figure] = []
    singles: dict[str, list[Figure]] = {result.curve.operator: [] for result in results}
    for count in milestones_up_to(trials, AFTER)[:-1]:
        metric, peer = f"latency after {count} trials", f"{trials} trials"
        aim = LITTLE if count == SETTLED_AFTER and trials >= SETTLED_OF else None
        ratios: dict[str, float | None] = {}
        for result in results:
            operator, early, late = result.curve.operator, result.after(count), result.after(trials)
            ratios[operator] = None
            if early is not None and late is not None:
                ratio = early.timings.ratio_to(late.timings)
                ratios[operator] = ratio.value
                singles[operator].append(ratio_figure(metric, ratio, peer, operator, aim=aim))
        means += mean_figure(metric, ratios, "x", aim=aim, peer=peer)
    return means + [each for found in singles.values() for each in found]
