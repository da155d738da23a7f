"""Every fault of `benchmarks.faults`, played on real processes: nothing lost, twice or wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.faults.places import Missing
from benchmarks.faults.plays import Rigs
from benchmarks.faults.scenarios import SCENARIOS, Scenario
from benchmarks.faults.stage import Ledger

pytestmark = pytest.mark.slow

RUNS = 2
# These wait for something that takes its time.
LONG = (
    *("server killed", "scheduler killed", "database locked", "disk full"),
    *("network cut", "network half-open"),
)


@pytest.fixture(scope="module")
def rigs() -> Iterator[Rigs]:
    with Rigs() as opened:
        yield opened


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])
def test_a_fault_costs_nothing(scenario: Scenario, rigs: Rigs) -> None:
    for _ in range(1 if scenario.name in LONG else RUNS):
        try:
            seen = rigs.play(scenario)
        except Missing as missing:
            pytest.skip(str(missing))
        assert seen.ledger == Ledger("done", lost=0, twice=0, wrong=0, given_up=scenario.given_up)
