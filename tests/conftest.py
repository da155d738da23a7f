"""Settings of hypothesis, and servers that are started when the first test asks for one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import services

pytest_plugins = ["tests.lanes"]

# Without bytecode, each of the thousand processes that tests start would compile our modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Two test processes of two threads each would fight for two cores.
os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts on a clock, nor does hypothesis.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

# Tests in the background of a shell ignore SIGINT, and the processes that they interrupt would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported and collected objects from garbage collection, which then takes less time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder in memory: SQLite waits for the disk after each commit, and a test makes hundreds."""
    parent = Path("/dev/shm")
    if not os.access(parent, os.W_OK):
        yield tmp_path_factory.mktemp("databases")
        return
    with tempfile.TemporaryDirectory(prefix="tunefarm-tests-", dir=parent) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[services.Postgresql]:
    try:
        with services.postgresql() as server:
            yield server
    except services.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[services.Redis]:
    try:
        with services.redis_server() as server:
            yield server
    except services.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def emptied(postgresql: services.Postgresql) -> services.Emptied:
    """Return a PostgreSQL database that is emptied before each test."""
    return services.Emptied(postgresql.create("emptied"))
