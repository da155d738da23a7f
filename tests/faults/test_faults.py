"""Every fault scenario on real processes: no trial lost, none counted twice, no wrong schedule.

`python -m benchmarks.faults` repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.environments import Unsupported
from tests.faults.job_run import Ledger
from tests.faults.rigs import Rigs
from tests.faults.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rigs() -> Iterator[Rigs]:
    with Rigs() as opened:
        yield opened


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])
def test_a_fault_costs_nothing(scenario: Scenario, rigs: Rigs) -> None:
    try:
        run = rigs.run(scenario)
    except Unsupported as missing:
        pytest.skip(str(missing))
    assert run.ledger == Ledger("done", lost=0, twice=0, wrong=0, given_up=scenario.given_up)
