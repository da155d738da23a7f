"""The executor with a real child process and real faults in it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from core.lease import Limits
from core.measurement import Measurement, Outcome
from system.packages import PACKAGES
from tests.devices import DEVICE
from tests.integration.worker.executors import (
    GENEROUS,
    HASTY_BUILD,
    HASTY_RUN,
    HERE,
    build_request,
    child_of_next,
    environment,
    gone,
    is_unlocked,
    measuring_process,
    with_executor,
)
from worker.runner.executor import Executor
from worker.runner.start_failure import ChildStartError


def test_a_child_that_behaves_is_kept() -> None:
    async def work(executor: Executor) -> None:
        device = await executor.start()
        assert device.name == DEVICE.name
        first = await child_of_next(executor)
        refused = await executor.measure(build_request("build refuse"), GENEROUS)
        assert refused == Measurement(Outcome.BUILD_ERROR, error="no such loop")
        assert await child_of_next(executor) == first

    with_executor(work)


def test_files_are_removed_while_the_event_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []
    really_remove = shutil.rmtree

    async def work(executor: Executor) -> None:
        await executor.start()
        loop = asyncio.get_running_loop()

        def rmtree(path: Path, ignore_errors: bool) -> None:
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            assert turned.wait(10), "the event loop stands still"
            removed.append(path)
            really_remove(path, ignore_errors)

        monkeypatch.setattr("shutil.rmtree", rmtree)
        await executor.close()

    with_executor(work)
    assert len(removed) == 2


def test_the_runner_gets_the_best_known_latency() -> None:
    async def work(executor: Executor) -> None:
        for best_s in (None, 0.25):
            assert (await executor.measure(build_request("best"), GENEROUS, (), best_s)).error == str(best_s)

    with_executor(work)


@pytest.mark.parametrize(
    ("trace", "limits", "outcome", "says"),
    [
        ("build segfault", GENEROUS, Outcome.BUILD_ERROR, "SIGSEGV"),
        ("run segfault", GENEROUS, Outcome.RUN_ERROR, "about to follow a bad pointer"),
        ("build exit", GENEROUS, Outcome.BUILD_ERROR, "exited with code 3"),
        ("run exit", GENEROUS, Outcome.RUN_ERROR, "exited with code 3"),
        ("build hang", HASTY_BUILD, Outcome.BUILD_TIMEOUT, "the build took longer than 0.2 s"),
        ("run hang", HASTY_RUN, Outcome.RUN_TIMEOUT, "the run took longer than 0.2 s"),
        ("run wrong", GENEROUS, Outcome.WRONG_RESULT, "output 0 differs"),
        ("run allocate", GENEROUS, Outcome.RUN_ERROR, "MemoryError"),
        ("build raise", GENEROUS, Outcome.BUILD_ERROR, "a bug in the runner"),
        ("run scribble", GENEROUS, Outcome.RUN_ERROR, "makes no sense"),
    ],
)
def test_a_child_that_misbehaved_is_replaced(trace: str, limits: Limits, outcome: Outcome, says: str) -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        process = measuring_process(executor)
        measurement = await executor.measure(build_request(trace), limits)
        assert measurement.outcome is outcome
        assert says in measurement.error
        assert gone(process.pid)
        assert await child_of_next(executor) != first

    with_executor(work)


def test_the_output_of_a_hanging_candidate_is_kept() -> None:
    async def work(executor: Executor) -> None:
        # The limit is what ends it, so it has to leave time to write.
        measurement = await executor.measure(build_request("run hang"), Limits(run_timeout_s=2.0))
        assert "spinning" in measurement.error

    with_executor(work)


def test_prints_and_reads_of_a_candidate_stay_out_of_the_protocol() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        for trace in ("print", "read", "print"):
            assert (await executor.measure(build_request(trace), GENEROUS)).outcome is Outcome.OK
        assert await child_of_next(executor) == first

    with_executor(work)


def test_an_error_quotes_only_its_own_candidates_output() -> None:
    async def work(executor: Executor) -> None:
        await executor.measure(build_request("print"), GENEROUS)
        measurement = await executor.measure(build_request("run exit"), GENEROUS)
        assert "xxx" not in measurement.error

    with_executor(work)


def test_a_child_with_much_memory_is_replaced_before_candidates_fail() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        assert (await executor.measure(build_request("grow"), GENEROUS)).outcome is Outcome.OK
        assert await child_of_next(executor) != first

    with_executor(work)


def test_processes_that_a_candidate_started_die_with_it(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        note = tmp_path / "pid"
        measuring = asyncio.create_task(executor.measure(build_request("spawn", str(note)), GENEROUS))
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.01)
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        while not is_unlocked(note):
            await asyncio.sleep(0.01)
        assert executor.child_pid is None

    with_executor(work)


def test_the_child_inherits_no_secrets_and_has_its_own_threads() -> None:
    async def work(executor: Executor) -> None:
        measurement = await executor.measure(build_request("environment"), GENEROUS)
        assert measurement.error == "2 1 4000 None None"

    with_executor(work, TUNEFARM_TOKEN="secret", AWS_SECRET_ACCESS_KEY="secret", TVM_BIND_THREADS="0")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_is_limited() -> None:
    async def work(executor: Executor) -> None:
        lines = (await executor.measure(build_request("limits"), GENEROUS)).error.splitlines()
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max core file size"] == "0"
        assert int(limits["Max file size"]) > 0
        assert int(limits["Max data size"]) > GENEROUS.memory_bytes

    with_executor(work)


def test_a_childs_files_are_deleted_with_it() -> None:
    async def work(executor: Executor) -> None:
        measurement = await executor.measure(build_request("leave_file"), GENEROUS)
        assert measurement.outcome is Outcome.WRONG_RESULT
        assert not Path(measurement.error).parent.exists()

    with_executor(work)


@pytest.mark.parametrize(
    ("does", "limits", "outcome"),
    [
        ("ok", GENEROUS, Outcome.OK),
        ("segfault", GENEROUS, Outcome.RUN_ERROR),
        ("hang", HASTY_RUN, Outcome.RUN_TIMEOUT),
    ],
)
def test_modules_are_timed_under_a_limit_of_their_own(
    tmp_path: Path, does: str, limits: Limits, outcome: Outcome
) -> None:
    async def work(executor: Executor) -> None:
        artifact = tmp_path / "artifact"
        artifact.write_text(does)
        assert (await executor.measure_module(artifact, limits, compare=True)).outcome is outcome
        await child_of_next(executor)

    with_executor(work)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (
            1 << 40,
            "may take 0.268 GB here, which isn't enough: raise TUNEFARM_WORKER_MEMORY_BYTES on this device",
        ),
        (1 << 20, "and this device has 0.00105 GB: time it on a device with more memory"),
    ],
)
def test_the_error_of_a_module_without_memory_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int, says: str
) -> None:
    async def work(executor: Executor) -> None:
        artifact = tmp_path / "artifact"
        artifact.write_text("allocate")
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=there))
        measurement = await executor.measure_module(artifact, GENEROUS, compare=True)
        assert measurement.outcome is Outcome.RUN_ERROR
        assert measurement.error.splitlines()[-1].endswith(says)

    with_executor(work)


def test_a_child_that_fails_its_check_says_why(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match=r"(?s)exited with code 7.*the probe computed nonsense"):
            await executor.start()
        with pytest.raises(ChildStartError):
            await executor.measure(build_request("ok"), GENEROUS)
        (tmp_path / "mended").touch()
        await child_of_next(executor)

    with_executor(work, TVM_FAULT_UNTIL=str(tmp_path / "mended"))


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("SIGILL", r"its check was ended by SIGILL \(illegal instruction\): .*--features.*"),
        ("SIGKILL", r"its check was ended by SIGKILL \(killed\): .*memory.*"),
        ("import", r"its check ended with ImportError: libtvm.so: .*: install tunefarm\[worker\] again"),
        ("exit", "its check exited with code 7: the probe computed nonsense"),
    ],
)
def test_a_child_that_dies_in_its_check_is_reported_in_one_line(tmp_path: Path, how: str, line: str) -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError) as raised:
            await executor.start()
        assert re.fullmatch(line, raised.value.failure.line)

    with_executor(work, TVM_FAULT_UNTIL=str(tmp_path / "never"), TVM_FAULT_HOW=how)


def test_a_child_that_never_gets_ready_is_given_up() -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match=r"longer than 0\.2 s"):
            await executor.start()
        assert executor.child_pid is None

    with_executor(work, runner="MuteRunner", start_timeout_s=0.2)


def test_a_runner_that_does_not_exist_is_named() -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match="NoSuchRunner"):
            await executor.start()

    with_executor(work, runner="NoSuchRunner")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_hanging_child_dies_with_the_agent(tmp_path: Path) -> None:
    script = """
import asyncio, getpass, os, sys
from pathlib import Path
from worker.runner.interface import BuildRequest
from worker.runner.executor import ChildConfig, Executor
from core.lease import Limits
async def main():
    shared = (Path(sys.argv[1]).parent,)
    config = ChildConfig(2, "fault_runner:FaultRunner", user=getpass.getuser(), writable=shared)
    executor = Executor(config, os.environ)
    await executor.start()
    print(executor.child_pid, flush=True)
    await executor.measure(BuildRequest("", sys.argv[1], "hang", ()), Limits(run_timeout_s=3600.0))
asyncio.run(main())
"""

    async def run() -> None:
        path = os.pathsep.join([str(PACKAGES), str(HERE)])
        agent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            script,
            str(tmp_path / "hanging"),
            env=environment(PYTHONPATH=path),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert agent.stdout is not None
        child = int(await agent.stdout.readline())
        while not (tmp_path / "hanging").exists():
            await asyncio.sleep(0.01)
        assert not gone(child)
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        while not gone(child):
            await asyncio.sleep(0.01)

    asyncio.run(run())
