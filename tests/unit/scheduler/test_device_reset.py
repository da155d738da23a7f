"""A lost device is reset by the operator's command, a few times, until its worker calls again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from core.worker import LOST_AFTER_S, DesiredState, WorkerState
from records.fleet import workers
from scheduler.settings import SchedulerSettings
from scheduler.upkeep.device_reset import MAX_RESETS, PATIENCE_S, DeviceReset, run

from .farm import Farm


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "resets"


def resetter(farm: Farm, log: Path) -> DeviceReset:
    script = log.with_name("reset.sh")
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    script.chmod(0o755)
    return DeviceReset(str(script), lambda: farm.now)


def check(reset: DeviceReset, farm: Farm) -> None:
    reset.check(farm.database, farm.now)
    if reset._running is not None:
        reset._running.join()


def test_a_lost_device_is_reset_until_it_calls(farm: Farm, log: Path) -> None:
    reset = resetter(farm, log)
    farm.plug_in()
    check(reset, farm)
    farm.now += LOST_AFTER_S + 1
    check(reset, farm)
    farm.now += PATIENCE_S - 1
    check(reset, farm)
    assert not log.exists(), "it may be restarting"
    for _ in range(MAX_RESETS + 2):
        farm.now += PATIENCE_S
        check(reset, farm)
        check(reset, farm)
    assert log.read_text().split() == ["worker"] * MAX_RESETS
    farm.plug_in()
    check(reset, farm)
    farm.now += LOST_AFTER_S + 1
    check(reset, farm)
    farm.now += PATIENCE_S
    check(reset, farm)
    assert log.read_text().split() == ["worker"] * (MAX_RESETS + 1)


def test_a_device_that_could_not_call_is_not_reset(farm: Farm, log: Path) -> None:
    """The service was stopped for an hour. Its workers call again soon after it has started."""
    farm.plug_in()
    farm.now += 3600
    reset = resetter(farm, log)
    check(reset, farm)
    farm.now += PATIENCE_S - 1
    check(reset, farm)
    assert not log.exists()
    farm.plug_in()
    farm.now += 1
    check(reset, farm)
    assert not log.exists()


@pytest.mark.parametrize("state", [DesiredState.DRAIN, DesiredState.EVICTED])
def test_drained_and_evicted_devices_are_not_reset(farm: Farm, log: Path, state: DesiredState) -> None:
    farm.plug_in()
    with farm.database.begin() as session:
        workers.set_desired_state(session, "worker", state)
    reset = resetter(farm, log)
    for _ in range(2):
        farm.now += 2 * PATIENCE_S
        check(reset, farm)
    assert not log.exists()


def test_a_worker_that_left_is_not_lost(farm: Farm, log: Path) -> None:
    farm.plug_in(WorkerState.OFFLINE)
    reset = resetter(farm, log)
    for _ in range(2):
        farm.now += 2 * PATIENCE_S
        check(reset, farm)
    assert not log.exists()


def test_a_command_that_fails_is_named(farm: Farm, caplog: pytest.LogCaptureFixture) -> None:
    assert run(["true"]) == ""
    assert run(["/no/such"]) == "/no/such can't be run (No such file or directory)"
    assert run(["sleep", "9"], timeout_s=0.01) == "sleep took longer than 0.01 s"
    assert run(["sh", "-c", "echo no relay >&2; exit 3"]) == "sh ended with exit code 3: no relay"
    farm.plug_in()
    reset = DeviceReset("/no/such --port 3", lambda: farm.now)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            farm.now += 2 * PATIENCE_S
            check(reset, farm)
    assert "the device of worker worker was not reset: /no/such can't be run" in caplog.text


def test_without_a_reset_command_nothing_is_run(farm: Farm) -> None:
    farm.plug_in()
    farm.now += 2 * PATIENCE_S
    reset = DeviceReset(None)
    check(reset, farm)
    assert reset._running is None


@pytest.mark.parametrize(
    ("command", "said"),
    [("/no/such --port 3", "a program that is here and executable"), ("sh -c 'x", "must be in pairs")],
)
def test_a_command_that_cannot_run_is_refused_at_the_start(command: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SchedulerSettings(broker="/b", database_url="sqlite://", reset_command=command)
    assert SchedulerSettings(broker="/b", database_url="sqlite://", reset_command="sh -c true").reset_command
