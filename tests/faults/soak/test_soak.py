"""An hour of the soak: nothing is lost, doubled or wrong."""

from __future__ import annotations

import pytest

from tests.faults.soak.run import Plan, run
from tests.services import Missing


# A loaded machine stretches the end, in which the last jobs finish.
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_faults_for_an_hour_cost_nothing() -> None:
    try:
        result = run(Plan(hours=1.0, speed_up=60.0, seed=1), print)
    except Missing as missing:
        pytest.skip(str(missing))
    assert result.mistakes == []
    assert result.jobs > 0
    assert result.asks > 0
    assert result.faults.total() > 0
