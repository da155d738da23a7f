"""Only implausible results and profiles are rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.lease import LeaseId
from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from proto.messages import Result, WorkerReport
from server.fleet.plausibility import (
    MAX_PLAUSIBLE_S,
    MIN_PLAUSIBLE_S,
    reject_implausible,
    reject_implausible_profile,
)
from tests.unit.records.farm import DEVICE


def result(*run_s: float) -> Result:
    return Result(1, LeaseId("lease", 1), Measurement(Outcome.OK, run_s, build_s=0.5), trial_id=7)


@pytest.mark.parametrize("run_s", [(MIN_PLAUSIBLE_S,), (6e-9, 5e-8), (1e-3, 1e-3), (MAX_PLAUSIBLE_S,)])
def test_plausible_times_are_kept(run_s: tuple[float, ...]) -> None:
    assert reject_implausible(result(*run_s)) == result(*run_s)


def test_a_failure_is_kept() -> None:
    failed = Result(1, LeaseId("lease", 1), Measurement(Outcome.RUN_ERROR, error="no"), module_run_id=7)
    assert reject_implausible(failed) == failed


@pytest.mark.parametrize(
    ("run_s", "implausible"),
    [((1e-12,), "1e-12"), ((1e-3, 1e-10, 1e-3), "1e-10"), ((1.7e308, 1.7e308), "1.7e+308")],
)
def test_implausible_times_become_a_failure(run_s: tuple[float, ...], implausible: str) -> None:
    rejected = reject_implausible(result(*run_s))
    assert (rejected.number, rejected.trial_id) == (1, 7)
    assert isinstance(rejected.measurement, Measurement)
    assert rejected.measurement.outcome is Outcome.UNKNOWN
    assert rejected.measurement.run_s == ()
    assert f"no call takes {implausible} s" in rejected.measurement.error


def report(**speeds: object) -> WorkerReport:
    device = replace(DEVICE, profile=replace(DEVICE.speeds, **speeds))  # type: ignore[arg-type]
    return WorkerReport("board", "session", True, WorkerState.READY, device)


@pytest.mark.parametrize("emulated", [{}, {"hertz": 1e7, "latency_cycles": 900.0, "memory_rate": 0.05}])
def test_a_plausible_profile_is_kept(emulated: dict[str, float]) -> None:
    device = reject_implausible_profile(report(**emulated)).device
    assert device is not None
    assert device.profile is not None


@pytest.mark.parametrize(
    ("speeds", "why"),
    [
        ({"hertz": 1e12}, "hertz of 1e+12"),
        ({"multiply_adds": {"float32": 2.0, "int8": 1e6}}, "multiply_adds of int8 of 1e+06"),
        ({"memory_rate": 1e9}, "memory_rate of 1e+09"),
        ({"launch_s": 1e-12}, "launch_s of 1e-12"),
        ({"registers": 10**6}, "registers of 1e+06"),
    ],
)
def test_an_implausible_profile_is_rejected(
    speeds: dict[str, object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    rejected = reject_implausible_profile(report(**speeds)).device
    assert rejected is not None
    assert rejected.profile is None
    (line,) = [record.message for record in caplog.records]
    assert "worker board" in line
    assert why in line
