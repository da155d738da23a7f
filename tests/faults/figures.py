"""Make figures from the results of fault scenarios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results.figures import Figure, at_least, at_most, figure
from tests.faults.scenarios import RunResult, Scenario

ALL = "all faults"


@dataclass(frozen=True)
class ScenarioResult:
    """All runs of one scenario: the results of finished runs, and the reasons of `failed` ones. `unsupported`
    says why this machine can't run the scenario; None if it can.
    """

    scenario: Scenario
    runs: Sequence[RunResult]
    failed: Sequence[str] = ()
    unsupported: str | None = None


def figures_of(results: Sequence[ScenarioResult]) -> list[Figure]:
    """Return the sums over all scenarios first, then two figures of each scenario."""
    supported = [result for result in results if result.unsupported is None]
    ledgers = [run.ledger for result in supported for run in result.runs]
    failed = sum(len(result.failed) for result in supported)
    sums: Mapping[str, int] = {
        "jobs that did not finish": failed + sum(ledger.state != "done" for ledger in ledgers),
        "trials lost": sum(ledger.lost for ledger in ledgers),
        "trials counted twice": sum(ledger.twice for ledger in ledgers),
        "wrong schedules published": sum(ledger.wrong for ledger in ledgers),
    }
    return [
        figure("runs", len(ledgers) + failed, "", subject=ALL),
        *(figure(name, count, "", subject=ALL, aim=at_most(0)) for name, count in sums.items()),
        *(each for result in supported for each in _figures_of_scenario(result)),
    ]


def _figures_of_scenario(result: ScenarioResult) -> list[Figure]:
    scenario, ledgers = result.scenario, [run.ledger for run in result.runs]
    runs = len(result.runs) + len(result.failed)
    clean = sum(
        ledger.state == "done"
        and ledger.given_up == scenario.given_up
        and ledger.lost == ledger.twice == ledger.wrong == 0
        for ledger in ledgers
    )
    name, metric = scenario.name, "runs without loss, duplicate or error"
    figures = [figure(metric, clean, f"of {runs}", subject=name, count=runs, aim=at_least(runs))]
    if result.runs:
        secs = sorted(run.recovery_s for run in result.runs)
        spread = (secs[len(secs) // 10], secs[(9 * len(secs)) // 10])
        figures.append(figure("time to recovery", statistics.median(secs), "s", subject=name, spread=spread))
    return figures
