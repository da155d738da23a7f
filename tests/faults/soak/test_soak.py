"""A soak of the service under faults: nothing is lost, doubled or wrong."""

from __future__ import annotations

import pytest

from tests.faults.soak.run import Plan, run
from tests.services import Missing


@pytest.mark.slow_lane(seconds=100)
# On a loaded machine, the last jobs take longer.
@pytest.mark.timeout(900)
def test_faults_lose_no_job_and_no_record() -> None:
    try:
        result = run(Plan(hours=1.0, speed_up=60.0, seed=1), print)
    except Missing as missing:
        pytest.skip(str(missing))
    assert result.mistakes == []
    assert result.jobs > 0
    assert result.asks > 0
    assert result.faults.total() > 0
