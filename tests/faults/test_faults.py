"""Every fault scenario on real processes: no trial lost, none counted twice, no wrong schedule.

`python -m benchmarks.faults` repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.environments import Unsupported
from tests.faults.job_run import Ledger
from tests.faults.rigs import Rigs
from tests.faults.scenarios import SCENARIOS
from tests.marks import slow_lane_except

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# The slow lane has the others.
EVERY_PUSH = (
    "worker killed while timing",
    "scheduler killed",
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture(scope="module")
def rigs() -> Iterator[Rigs]:
    with Rigs() as opened:
        yield opened


@pytest.mark.parametrize("name", slow_lane_except(BY_NAME, *EVERY_PUSH, seconds=9))
def test_no_fault_loses_duplicates_or_changes_a_result(name: str, rigs: Rigs) -> None:
    scenario = BY_NAME[name]
    try:
        run = rigs.run(scenario)
    except Unsupported as missing:
        pytest.skip(str(missing))
    assert run.ledger == Ledger("done", lost=0, twice=0, wrong=0, given_up=scenario.given_up)
