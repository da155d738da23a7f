"""What became of every fault, as figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.faults.scenarios import Scenario, Seen
from benchmarks.results.figures import Figure, at_least, at_most, figure


@dataclass(frozen=True)
class Found:
    """All plays of a scenario: what was seen, and why the others failed. `missing`: why there are none."""

    scenario: Scenario
    seen: Sequence[Seen]
    failed: Sequence[str] = ()
    missing: str | None = None


def figures_of(found: Sequence[Found]) -> list[Figure]:
    """The sums over all faults first."""
    played = [one for one in found if one.missing is None]
    return [*_sums(played), *(each for one in played for each in _of(one))]


def _sums(found: Sequence[Found]) -> list[Figure]:
    plays = [(one, seen) for one in found for seen in one.seen]
    failed = sum(len(one.failed) for one in found)
    counted: Mapping[str, int] = {
        "jobs that did not finish": failed + sum(seen.ledger.state != "done" for _, seen in plays),
        "trials lost": sum(seen.ledger.lost for _, seen in plays),
        "trials counted twice": sum(seen.ledger.twice for _, seen in plays),
        "wrong schedules published": sum(seen.ledger.wrong for _, seen in plays),
    }
    runs = figure("all faults: runs", len(plays) + failed, "")
    return [
        runs,
        *(figure(f"all faults: {name}", count, "", aim=at_most(0)) for name, count in counted.items()),
    ]


def _of(found: Found) -> list[Figure]:
    name = found.scenario.name
    runs = len(found.seen) + len(found.failed)
    went_well = sum(_is_clean(seen, found.scenario) for seen in found.seen)
    figures = [
        figure(f"{name}: runs without loss, duplicate or error", went_well, f"of {runs}", aim=at_least(runs))
    ]
    if found.seen:
        secs = sorted(seen.recovery_s for seen in found.seen)
        spread = (secs[len(secs) // 10], secs[(9 * len(secs)) // 10])
        figures.append(figure(f"{name}: time to recovery", statistics.median(secs), "s", spread=spread))
    return figures


def _is_clean(seen: Seen, scenario: Scenario) -> bool:
    books = seen.ledger
    kept = books.state == "done" and books.given_up == scenario.given_up
    return kept and books.lost == books.twice == books.wrong == 0
