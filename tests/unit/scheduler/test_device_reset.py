"""A lost device is reset by the operator's command, a few times, until its worker calls again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from core.worker import DesiredState, WorkerState
from records.fleet import workers
from scheduler.upkeep.device_reset import MAX_RESETS, PATIENCE_S, DeviceReset, run

from .farm import Farm


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "resets"


def resetter(log: Path) -> DeviceReset:
    script = log.with_name("reset.sh")
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    script.chmod(0o755)
    return DeviceReset(str(script))


def check(reset: DeviceReset, farm: Farm) -> None:
    reset.check(farm.database, farm.now)
    if reset._running is not None:
        reset._running.join()


def test_a_lost_device_is_reset_until_it_calls(farm: Farm, log: Path) -> None:
    reset = resetter(log)
    farm.plug_in()
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
    farm.now += PATIENCE_S
    check(reset, farm)
    assert log.read_text().split() == ["worker"] * (MAX_RESETS + 1)


@pytest.mark.parametrize("state", [DesiredState.DRAIN, DesiredState.EVICTED])
def test_drained_and_evicted_devices_are_not_reset(farm: Farm, log: Path, state: DesiredState) -> None:
    farm.plug_in()
    with farm.database.begin() as session:
        workers.set_desired_state(session, "worker", state)
    farm.now += 2 * PATIENCE_S
    check(resetter(log), farm)
    assert not log.exists()


def test_a_worker_that_left_is_not_lost(farm: Farm, log: Path) -> None:
    farm.plug_in(WorkerState.OFFLINE)
    farm.now += 2 * PATIENCE_S
    check(resetter(log), farm)
    assert not log.exists()


def test_a_command_that_fails_is_named(farm: Farm, caplog: pytest.LogCaptureFixture) -> None:
    assert run(["true"]) == ""
    assert run(["/no/such"]) == "/no/such can't be run (No such file or directory)"
    assert run(["sleep", "9"], timeout_s=0.01) == "sleep took longer than 0.01 s"
    assert run(["sh", "-c", "echo no relay >&2; exit 3"]) == "sh ended with exit code 3: no relay"
    farm.plug_in()
    farm.now += 2 * PATIENCE_S
    with caplog.at_level(logging.ERROR):
        check(DeviceReset("/no/such --port 3"), farm)
    assert "the device of worker worker was not reset: /no/such can't be run" in caplog.text


def test_without_a_reset_command_nothing_is_run(farm: Farm) -> None:
    farm.plug_in()
    farm.now += 2 * PATIENCE_S
    reset = DeviceReset(None)
    check(reset, farm)
    assert reset._running is None
