"""The processes of a child together get no more memory than the parent allows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
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
