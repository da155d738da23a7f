"""Executors for tests: their child processes are real, and run `fault_runner`."""

from __future__ import annotations

import asyncio
import fcntl
import getpass
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil

from core.lease import Limits
from core.measurement import Measurement, Outcome
from worker.runner.executor import ChildConfig, Executor
from worker.runner.interface import BuildRequest

HERE = Path(__file__).parent
# Candidates write files here that the tests read.
SHARED = (Path(tempfile.gettempdir()),)
# Children that share it are this user's.
OWNER = getpass.getuser()
GENEROUS = Limits(build_timeout_s=60.0, run_timeout_s=60.0, memory_bytes=1 << 28)
HASTY_BUILD = Limits(build_timeout_s=0.2, run_timeout_s=60.0)
HASTY_BUILD_ALONG = Limits(build_timeout_s=2.0, run_timeout_s=60.0)
HASTY_RUN = Limits(build_timeout_s=60.0, run_timeout_s=0.2, module_timeout_s=0.2)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE), **more}


def build_request(trace: str, module_json: str = "") -> BuildRequest:
    return BuildRequest('{"kind":"llvm"}', module_json, trace, ())


def with_executor(
    work: Callable[[Executor], Awaitable[None]],
    runner: str = "FaultRunner",
    start_timeout_s: float = 60.0,
    builds: bool = False,
    **env: str,
) -> None:
    async def run() -> None:
        config = ChildConfig(
            2, f"fault_runner:{runner}", start_timeout_s, user=OWNER, builds=builds, writable=SHARED
        )
        executor = Executor(config, environment(**env))
        try:
            await work(executor)
        finally:
            await executor.close()

    asyncio.run(run())


async def child_of_next(executor: Executor) -> float:
    """Measure a good candidate; return the number that names the child that measured it."""
    measurement = await executor.measure(build_request("ok"), GENEROUS)
    assert measurement.outcome is Outcome.OK
    return measurement.build_s


async def measure_all(
    executor: Executor, traces: Sequence[str], limits: Limits, module_json: str = ""
) -> list[Measurement]:
    """Measure candidates as the agent does: the next ones are always built along."""
    batch = [build_request(trace, module_json) for trace in traces]
    return [await executor.measure(one, limits, batch[number + 1 :]) for number, one in enumerate(batch)]


def outcomes(measurements: Sequence[Measurement]) -> list[str]:
    return [measurement.outcome.value for measurement in measurements]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_unlocked(file: Path) -> bool:
    """Return whether the process that locked a file has ended."""
    with file.open("r+") as opened:
        try:
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def measuring_process(executor: Executor) -> psutil.Process:
    """The process that candidates run in, the last below the reaper."""
    return psutil.Process(executor.child_pid).children(recursive=True)[-1]
