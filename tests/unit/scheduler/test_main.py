"""The scheduler as a process of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from core.job import JobState
from scheduler.app import make_app, send
from tests.unit.scheduler.farm import Farm
from tests.unit.scheduler.processes import start


@pytest.mark.slow
def test_the_process_sweeps_takes_wake_ups_and_ends_cleanly(
    farm: Farm, database_file: Path, tmp_path: Path
) -> None:
    broker = str(tmp_path / "broker")
    alive = tmp_path / "alive"
    farm.submit("swept")
    process = start(
        TUNEFARM_BROKER=broker,
        TUNEFARM_DATABASE_URL=f"sqlite:///{database_file}",
        TUNEFARM_SWEEP_INTERVAL_S="0.5",
        TUNEFARM_ALIVE_FILE=str(alive),
    )
    try:
        send(make_app(broker), "intake", "nobody")
        wait_for_message(farm, "swept", "waiting for a device: start a worker")
        assert is_touched(alive)
        os.utime(alive, (0, 0))
        assert is_touched(alive)
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "asked to step job nobody, which does not exist" in errors
    assert "Traceback" not in errors
    assert farm.job("swept").state is JobState.QUEUED


def is_touched(file: Path, patience_s: float = 40.0) -> bool:
    deadline = time.monotonic() + patience_s
    while not (file.exists() and file.stat().st_mtime > 0):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_for_message(farm: Farm, job_id: str, message: str, patience_s: float = 40.0) -> None:
    deadline = time.monotonic() + patience_s
    while farm.job(job_id).message != message:
        assert time.monotonic() < deadline, farm.job(job_id)
        time.sleep(0.1)


def test_wrong_settings_are_refused_in_one_line(tmp_path: Path) -> None:
    process = start(TUNEFARM_BROKER=str(tmp_path), TUNEFARM_BATCH_SIZE="0")
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed) == (ExitCode.USAGE, "")
    assert errors == (
        "tunefarm scheduler: the setting database_url is missing: give it by TUNEFARM_DATABASE_URL; "
        "the setting batch_size is wrong: Input should be greater than or equal to 1, not '0' "
        "(it comes from TUNEFARM_BATCH_SIZE)\n"
    )


def test_a_database_that_cannot_be_opened_is_refused_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/missing/tunefarm.db"
    process = start(TUNEFARM_BROKER=str(tmp_path), TUNEFARM_DATABASE_URL=url)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == ExitCode.LOCAL
    assert errors.startswith("tunefarm scheduler: the database")
    assert errors.count("\n") == 1
