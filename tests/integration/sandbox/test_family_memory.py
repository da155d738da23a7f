"""The total memory of a child's processes is limited by its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compiler.children.child import run_child
from core.lease import Limits
from core.measurement import Measurement, Outcome
from sandbox import family_memory
from tests.integration.sandbox.memory_hog import PART_BYTES, PARTS
from worker.runner.executor import ChildConfig, Executor
from worker.runner.interface import BuildRequest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_BYTES = PART_BYTES + (28 << 20)
# A process with a child, which has one, too. It prints the files that are opened, and their ids.
LOOK = """
import os, sys, time
from sandbox.family_memory import bytes_above
here, there = os.pipe()
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild:
        os.write(there, str(grandchild).encode())
    time.sleep(600)
grandchild = int(os.read(here, 20))
bytes_above(os.getpid(), 1 << 60)
opened = []
sys.addaudithook(lambda event, of: opened.append(of[0]) if event in ("open", "os.listdir") else None)
assert bytes_above(os.getpid(), 1 << 60) == 0
print(*[path for path in opened if not path.endswith("/task")], sep="\\n")
print(child, grandchild)
os.kill(grandchild, 9), os.kill(child, 9)
"""
HOW = pytest.mark.parametrize("how", ["processes", "shared"])

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


@pytest.fixture(autouse=True)
def little_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (HERE, ROOT))))
    monkeypatch.setattr(family_memory, "SLACK_BYTES", 64 << 20)
    assert LIMIT_BYTES < family_memory.most_bytes(LIMIT_BYTES) < PARTS * PART_BYTES


@HOW
def test_a_compile_child_is_ended(how: str) -> None:
    request = json.dumps({"how": how}).encode()
    with run_child("memory_hog", request, 120.0, LIMIT_BYTES) as (_, status):
        assert status == -signal.SIGKILL


def test_memory_that_processes_share_counts_once() -> None:
    request = json.dumps({"how": "shared by many"}).encode()
    with run_child("memory_hog", request, 120.0, LIMIT_BYTES) as (_, status):
        assert status == 0


def test_a_look_opens_a_few_files_of_the_family_alone() -> None:
    """Checks run while candidates are timed, and the machine may have thousands of other processes."""
    with subprocess.Popen([sys.executable, "-c", LOOK], stdout=subprocess.PIPE, text=True) as looking:
        assert looking.stdout is not None
        *opened, family = looking.stdout.read().splitlines()
    first, second = family.split()
    files = {"children": 3, "status": 2}
    assert Counter(Path(path).name for path in opened if path.startswith("/proc/")) == files
    assert {path.split("/")[2] for path in opened} == {str(looking.pid), first, second}


def test_a_child_that_reads_late_gets_its_whole_request() -> None:
    """Requests with the traces of a network are larger than a pipe."""
    traces = "x" * (1 << 20)
    request = json.dumps({"traces": traces}).encode()
    with run_child("late_reader", request, 120.0, LIMIT_BYTES) as (reply, status):
        assert (status, reply.read()) == (0, b"%d\n" % len(traces))


@HOW
def test_a_measuring_child_is_ended_and_says_why(how: str) -> None:
    limits = Limits(build_timeout_s=120.0, run_timeout_s=120.0, memory_bytes=LIMIT_BYTES)

    async def measure() -> Measurement:
        executor = Executor(ChildConfig(1, "memory_hog:HogRunner"), os.environ)
        try:
            return await executor.measure(BuildRequest("", how, "run hog", ()), limits)
        finally:
            await executor.close()

    measurement = asyncio.run(measure())
    assert measurement.outcome is Outcome.RUN_ERROR
    assert "the child's processes took 0." in measurement.error
    assert "GB of memory together, more than 0.336 GB" in measurement.error
