"""The scheduler process on PostgreSQL and Redis, also while Redis is unavailable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from core.job import JobState
from records.jobs import jobs
from records.storage.database import Database
from scheduler.app import Waker, make_app
from tests.services import PASSWORD, Emptied, Redis
from tests.unit.scheduler.farm import Farm

WAITING = "waiting for a device: start a worker"


@pytest.fixture
def farm(emptied: Emptied) -> Iterator[Farm]:
    emptied.empty()
    database = Database(emptied.url)
    yield Farm(database)
    database.close()


@pytest.fixture
def broker(redis_server: Redis) -> str:
    """Empty, whatever tests before left there."""
    redis_server.stop()
    redis_server.start()
    return redis_server.url


@contextmanager
def scheduler(database_url: str, broker: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
    ours = {
        "TUNEFARM_DATABASE_URL": database_url,
        "TUNEFARM_BROKER": broker,
        "TUNEFARM_SWEEP_INTERVAL_S": "0.5",
    }
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "scheduler"], env=plain | ours, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(broker: str, count: int) -> list[str]:
    """The names of the steps in the queue."""
    found: list[str] = []
    with make_app(broker).connection_for_read() as connection:
        queue = connection.SimpleQueue("tunefarm")
        while len(found) < count:
            message = queue.get(timeout=20)
            found.append(message.headers["task"])
            message.ack()
        queue.close()
    return found


def test_wake_ups_use_redis_and_survive_its_restart(redis_server: Redis, broker: str) -> None:
    wake = Waker(make_app(broker))
    wake("round", "job 1")
    assert read(broker, 1) == ["scheduler.round"]
    redis_server.stop()
    wake("round", "nobody is there")
    wake("round", "nobody is there")
    redis_server.start()
    # The first ones may still fail for the connection that was lost.
    until(lambda: _reaches(wake, broker))


def _reaches(wake: Waker, broker: str) -> bool:
    wake("publish", "job 2")
    with make_app(broker).connection_for_read() as connection:
        return bool(connection.default_channel.client.llen("tunefarm"))


@pytest.mark.slow_lane(seconds=6)
def test_a_scheduler_lives_through_a_restart_of_redis(
    farm: Farm, emptied: Emptied, redis_server: Redis, broker: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    farm.submit("before")
    with scheduler(emptied.url, broker, log) as process:
        until(lambda: farm.job("before").message == WAITING)
        redis_server.stop()
        farm.submit("meanwhile")
        time.sleep(1.5)
        assert farm.job("meanwhile").message == ""
        redis_server.start()
        until(lambda: farm.job("meanwhile").message == WAITING)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    errors = log.read_text()
    assert "no job is woken while the broker is away" in errors
    assert "the broker is back" in errors
    assert PASSWORD not in errors
    assert quote(PASSWORD, safe="") not in errors


@pytest.mark.slow_lane(seconds=6)
def test_the_successor_of_a_killed_scheduler_continues_at_once(
    farm: Farm, emptied: Emptied, broker: str, tmp_path: Path
) -> None:
    """The killed scheduler's claim is still valid."""
    log = tmp_path / "log"
    with scheduler(emptied.url, broker, log):
        farm.submit("job")
        until(lambda: farm.job("job").message == WAITING)
    name = log.read_text().partition("ready as ")[2].split()[0]
    with farm.database.begin() as session:
        assert jobs.claim_job(session, "job", name, time.time(), 900.0)
    farm.now = time.time()  # by the scheduler's clock, the worker is to be there
    farm.plug_in()
    with scheduler(emptied.url, broker, log):
        until(lambda: farm.job("job").state is not JobState.QUEUED)
