"""What is believed of workers."""

from __future__ import annotations

import pytest

from proto.values import LeaseId, Outcome, Result
from search.measurement import Measurement
from server.fleet.plausible import LONGEST_S, SHORTEST_S, believed


def result(*run_secs: float) -> Result:
    return Result(1, LeaseId("lease", 1), Measurement(Outcome.OK, run_secs, build_secs=0.5), trial_id=7)


@pytest.mark.parametrize("run_secs", [(SHORTEST_S,), (6e-9, 5e-8), (1e-3, 1e-3), (LONGEST_S,)])
def test_what_a_machine_can_do_is_believed(run_secs: tuple[float, ...]) -> None:
    assert believed(result(*run_secs)) == result(*run_secs)


def test_a_failure_is_believed() -> None:
    failed = Result(1, LeaseId("lease", 1), Measurement(Outcome.RUN_ERROR, error="no"), module_run_id=7)
    assert believed(failed) == failed


@pytest.mark.parametrize(
    ("run_secs", "senseless"),
    [((1e-12,), "1e-12"), ((1e-3, 1e-10, 1e-3), "1e-10"), ((1.7e308, 1.7e308), "1.7e+308")],
)
def test_what_no_machine_can_do_is_a_failure_that_says_so(
    run_secs: tuple[float, ...], senseless: str
) -> None:
    refused = believed(result(*run_secs))
    assert (refused.number, refused.trial_id) == (1, 7)
    assert refused.measurement.outcome is Outcome.UNKNOWN
    assert refused.measurement.run_secs == ()
    assert f"no call takes {senseless} s" in refused.measurement.error
