"""A soak of the service under faults: nothing is lost, doubled or wrong."""

from __future__ import annotations

import pytest

from tests.faults.soak.run import Plan, run
from tests.services import Missing

HOUR, QUARTER = 1.0, 0.25


@pytest.mark.slow_lane
# On a loaded machine, the last jobs take longer.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hours", [QUARTER, HOUR])
def test_faults_cost_nothing(hours: float) -> None:
    try:
        result = run(Plan(hours=hours, speed_up=60.0, seed=1), print)
    except Missing as missing:
        pytest.skip(str(missing))
    assert result.mistakes == []
    assert result.jobs > 0
    assert result.asks > 0
    assert result.faults.total() > 0
