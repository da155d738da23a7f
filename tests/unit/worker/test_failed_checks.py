"""Recheck a device that can't measure after longer and longer pauses, and report the reason to users."""

from __future__ import annotations

import logging

import pytest

from worker.agent.failed_checks import FailedChecks
from worker.runner.start_failure import ChildStartError, StartFailure


def failing(checks: FailedChecks, *kinds: str) -> list[float]:
    """Let checks fail; return the pause after each."""
    pauses = []
    for number, kind in enumerate(kinds):
        checks.failed(ChildStartError(StartFailure(kind, f"its check failed by {kind}"), f"stderr {number}"))
        pauses.append(checks.pause_s)
    return pauses


def test_three_equal_failures_are_reported_and_rechecked_rarely() -> None:
    checks = FailedChecks(600.0)
    assert failing(checks, "SIGILL", "SIGILL") == [1.0, 2.0]
    assert checks.health_error == ""
    assert failing(checks, "SIGILL", "SIGILL") == [600.0, 600.0]
    assert checks.health_error == "its check failed by SIGILL"


def test_a_single_failed_check_is_not_reported() -> None:
    checks = FailedChecks(600.0)
    assert failing(checks, "SIGILL", "SIGKILL", "SIGILL", "SIGILL") == [1.0, 2.0, 4.0, 8.0]
    assert checks.health_error == ""
    checks.passed()
    assert failing(checks, "SIGILL", "SIGILL") == [1.0, 2.0]
    assert checks.health_error == ""


def test_different_failures_also_make_a_device_unhealthy() -> None:
    checks = FailedChecks(600.0)
    assert failing(checks, *"ababab")[-2:] == [16.0, 600.0]
    assert checks.health_error == "its check failed by b"
    assert failing(checks, "c") == [600.0]
    assert checks.health_error == "its check failed by c"


def test_failed_checks_are_logged_after_1_2_4_and_8_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="worker"):
        failing(FailedChecks(600.0), *["SIGILL"] * 15)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition("(")[2].split()[0] for line in said] == ["1", "2", "4", "8"]
    assert ["stderr" in line for line in said] == [True, False, False, False]
    assert said[2] == (
        "this device can't measure yet (4 in a row, the next check is in 600 s): its check failed by SIGILL"
    )


def test_a_new_failure_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    failing(FailedChecks(600.0), "a", "a", "b", "a", "b")
    said = [record.getMessage() for record in caplog.records]
    assert [line.splitlines()[1:] for line in said] == [["stderr 0"], [], ["stderr 2"], []]
