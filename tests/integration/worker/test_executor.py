"""The executor with a real child process, and faults that really happen in it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil
import pytest

from proto.values import Limits
from search.measurement import Measurement, Outcome
from worker.bench import Subject
from worker.executor import PACKAGES, ChildConfig, ChildStartError, Executor

HERE = Path(__file__).parent
GENEROUS = Limits(build_timeout_s=60.0, run_timeout_s=60.0, memory_bytes=1 << 28)
HASTY_BUILD = Limits(build_timeout_s=0.2, run_timeout_s=60.0)
HASTY_BUILD_ALONG = Limits(build_timeout_s=2.0, run_timeout_s=60.0)
HASTY_RUN = Limits(build_timeout_s=60.0, run_timeout_s=0.2, module_timeout_s=0.2)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE), **more}


def subject(trace: str, module_json: str = "") -> Subject:
    return Subject('{"kind":"llvm"}', module_json, trace, ())


def with_executor(
    work: Callable[[Executor], Awaitable[None]],
    bench: str = "FaultBench",
    start_timeout_s: float = 60.0,
    builds: bool = False,
    **env: str,
) -> None:
    async def run() -> None:
        config = ChildConfig(2, f"fault_bench:{bench}", start_timeout_s, builds=builds)
        executor = Executor(config, environment(**env))
        try:
            await work(executor)
        finally:
            await executor.close()

    asyncio.run(run())


async def child_of_next(executor: Executor) -> float:
    """The process id of the child that serves a good candidate."""
    measurement = await executor.measure(subject("ok"), GENEROUS)
    assert measurement.outcome is Outcome.OK
    return measurement.build_secs


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_that_behaves_is_kept() -> None:
    async def work(executor: Executor) -> None:
        device = await executor.start()
        assert device.name == "test board"
        first = await child_of_next(executor)
        refused = await executor.measure(subject("build refuse"), GENEROUS)
        assert refused == Measurement(Outcome.BUILD_ERROR, error="no such loop")
        assert await child_of_next(executor) == first

    with_executor(work)


@pytest.mark.parametrize("fault", ["build segfault", "build hang"])
def test_a_candidate_does_not_pay_for_one_that_was_built_along(fault: str) -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        guilty = subject(fault)
        innocent = await executor.measure(subject("ok"), HASTY_BUILD_ALONG, [guilty])
        assert innocent.outcome is Outcome.OK
        assert innocent.build_secs != first, "the child that died with both was replaced"
        alone = await executor.measure(guilty, HASTY_BUILD_ALONG)
        assert alone.outcome in (Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT)

    with_executor(work)


async def measure_all(
    executor: Executor, traces: Sequence[str], limits: Limits, module_json: str = ""
) -> list[Measurement]:
    """As the agent does: those that come next are always built along."""
    batch = [subject(trace, module_json) for trace in traces]
    return [await executor.measure(one, limits, batch[number + 1 :]) for number, one in enumerate(batch)]


def outcomes(measurements: Sequence[Measurement]) -> list[str]:
    return [measurement.outcome.value for measurement in measurements]


@pytest.mark.parametrize(
    ("fault", "limits", "outcome", "says"),
    [
        ("kill", GENEROUS, "build_error", "SIGKILL during the build"),
        ("segfault", GENEROUS, "build_error", "about to follow a bad pointer"),
        ("exit", GENEROUS, "build_error", "exited with code 3"),
        ("raise", GENEROUS, "build_error", "a bug in the bench"),
        ("hang", HASTY_BUILD_ALONG, "build_timeout", "the build took longer than 2 s"),
        ("refuse", GENEROUS, "build_error", "no such loop"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 5])
def test_of_a_batch_that_is_built_together_the_culprit_fails_alone(
    fault: str, limits: Limits, outcome: str, says: str, place: int
) -> None:
    async def work(executor: Executor) -> None:
        traces = [f"build ok {number}" for number in range(6)]
        traces[place] = f"build {fault}"
        measurements = await measure_all(executor, traces, limits)
        assert outcomes(measurements) == [outcome if number == place else "ok" for number in range(6)]
        assert says in measurements[place].error

    with_executor(work)


def test_each_of_several_culprits_is_found() -> None:
    async def work(executor: Executor) -> None:
        traces = ["build ok", "build kill", "run ok", "build exit", "build ok 2", "build refuse", "run exit"]
        expected = ["ok", "build_error", "ok", "build_error", "ok", "build_error", "run_error"]
        assert outcomes(await measure_all(executor, traces, GENEROUS)) == expected

    with_executor(work)


def test_a_batch_is_built_once_by_a_child_that_behaves() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        measurements = await measure_all(executor, [f"build ok {number}" for number in range(6)], GENEROUS)
        assert {one.build_secs for one in measurements} == {first}

    with_executor(work)


def test_nobody_fails_when_the_child_is_killed_while_it_builds(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        note = tmp_path / "hanging"
        traces = ["build ok", "build hang_once", "build ok 2"]
        measuring = asyncio.create_task(measure_all(executor, traces, GENEROUS, str(note)))
        while not note.exists():
            await asyncio.sleep(0.01)
        assert executor.child_pid is not None
        os.kill(executor.child_pid, signal.SIGKILL)
        assert outcomes(await measuring) == ["ok", "ok", "ok"]

    with_executor(work)


def test_nobody_fails_when_the_child_is_killed_while_it_has_nothing_to_do() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        os.kill(int(first), signal.SIGKILL)
        while not gone(int(first)):
            await asyncio.sleep(0.01)
        assert await child_of_next(executor) != first

    with_executor(work)


def test_the_time_limit_is_for_each_candidate_of_a_batch() -> None:
    async def work(executor: Executor) -> None:
        # Two at a time they take 1.8 s.
        traces = [f"build nap {number}" for number in range(12)]
        limits = Limits(build_timeout_s=1.2, run_timeout_s=60.0)
        first = await child_of_next(executor)
        measurements = await measure_all(executor, traces, limits)
        assert outcomes(measurements) == ["ok"] * 12
        assert {one.build_secs for one in measurements} == {first}

    with_executor(work)


def test_what_fails_to_build_for_want_of_memory_among_others_is_built_alone() -> None:
    async def work(executor: Executor) -> None:
        traces = ["build crowded", "build ok", "build crowded 2"]
        assert outcomes(await measure_all(executor, traces, GENEROUS)) == ["ok", "ok", "ok"]

    with_executor(work)


def test_a_candidate_does_not_pay_for_what_ran_before_it() -> None:
    async def work(executor: Executor) -> None:
        assert outcomes([await executor.measure(subject("run plant"), GENEROUS)]) == ["ok"]
        assert outcomes([await executor.measure(subject("build trip"), GENEROUS)]) == ["ok"]

    with_executor(work)


def test_a_child_that_tells_of_other_candidates_is_not_believed() -> None:
    async def work(executor: Executor) -> None:
        measurements = await measure_all(executor, ["build ok", "build ok 2"], GENEROUS)
        assert outcomes(measurements) == ["build_error", "build_error"]
        assert all("makes no sense" in measurement.error for measurement in measurements)
        assert executor.child_pid is None

    with_executor(work, bench="LyingBench")


def test_the_bench_is_told_the_best_latency_known() -> None:
    async def work(executor: Executor) -> None:
        for best_s in (None, 0.25):
            assert (await executor.measure(subject("best"), GENEROUS, (), best_s)).error == str(best_s)

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
        ("build raise", GENEROUS, Outcome.BUILD_ERROR, "a bug in the bench"),
        ("run scribble", GENEROUS, Outcome.RUN_ERROR, "makes no sense"),
    ],
)
def test_a_child_that_misbehaved_is_replaced(trace: str, limits: Limits, outcome: Outcome, says: str) -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        measurement = await executor.measure(subject(trace), limits)
        assert measurement.outcome is outcome
        assert says in measurement.error
        assert gone(int(first))
        assert await child_of_next(executor) != first

    with_executor(work)


def test_what_a_hanging_candidate_wrote_is_kept() -> None:
    async def work(executor: Executor) -> None:
        # The limit is what ends it, so it has to leave time to write.
        measurement = await executor.measure(subject("run hang"), Limits(run_timeout_s=2.0))
        assert "spinning" in measurement.error

    with_executor(work)


def test_prints_and_reads_of_a_candidate_stay_out_of_the_protocol() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        for trace in ("print", "read", "print"):
            assert (await executor.measure(subject(trace), GENEROUS)).outcome is Outcome.OK
        assert await child_of_next(executor) == first

    with_executor(work)


def test_the_words_of_one_candidate_are_not_held_against_the_next() -> None:
    async def work(executor: Executor) -> None:
        await executor.measure(subject("print"), GENEROUS)
        measurement = await executor.measure(subject("run exit"), GENEROUS)
        assert "xxx" not in measurement.error

    with_executor(work)


def test_a_child_that_has_grown_is_replaced_before_it_fails_good_candidates() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        assert (await executor.measure(subject("grow"), GENEROUS)).outcome is Outcome.OK
        assert await child_of_next(executor) != first

    with_executor(work)


def test_processes_that_a_candidate_started_die_with_it(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        note = tmp_path / "pid"
        measuring = asyncio.create_task(executor.measure(subject("spawn", str(note)), GENEROUS))
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.01)
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        while not gone(int(note.read_text())):
            await asyncio.sleep(0.01)
        assert executor.child_pid is None

    with_executor(work)


def test_the_child_knows_no_secrets_and_how_many_threads_to_use() -> None:
    async def work(executor: Executor) -> None:
        measurement = await executor.measure(subject("environment"), GENEROUS)
        assert measurement.error == "2 None None"

    with_executor(work, TUNEFARM_TOKEN="secret", AWS_SECRET_ACCESS_KEY="secret")


@pytest.mark.parametrize(("cpus", "binding"), [(3, "0"), (4, "None")])
def test_threads_are_not_pinned_to_cores_that_the_worker_may_not_use(
    cpus: int, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.executor.os.cpu_count", lambda: 4)
    monkeypatch.setattr("worker.executor.os.sched_getaffinity", lambda _: set(range(cpus)))

    async def work(executor: Executor) -> None:
        assert (await executor.measure(subject("binding"), GENEROUS)).error == binding

    with_executor(work)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_is_limited() -> None:
    async def work(executor: Executor) -> None:
        lines = (await executor.measure(subject("limits"), GENEROUS)).error.splitlines()
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max core file size"] == "0"
        assert int(limits["Max file size"]) > 0
        assert int(limits["Max address space"]) > GENEROUS.memory_bytes

    with_executor(work)


def test_what_a_child_left_on_disk_goes_with_it() -> None:
    async def work(executor: Executor) -> None:
        measurement = await executor.measure(subject("leave_file"), GENEROUS)
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
        assert (await executor.measure_module(artifact, limits)).outcome is outcome
        await child_of_next(executor)

    with_executor(work)


def test_a_child_that_fails_its_check_says_why(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match=r"(?s)exited with code 7.*the probe computed nonsense"):
            await executor.start()
        with pytest.raises(ChildStartError):
            await executor.measure(subject("ok"), GENEROUS)
        (tmp_path / "mended").touch()
        await child_of_next(executor)

    with_executor(work, TVM_FAULT_UNTIL=str(tmp_path / "mended"))


def test_a_child_that_never_gets_ready_is_given_up() -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match=r"longer than 0\.2 s"):
            await executor.start()
        assert executor.child_pid is None

    with_executor(work, bench="MuteBench", start_timeout_s=0.2)


def test_a_bench_that_does_not_exist_is_named() -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match="NoSuchBench"):
            await executor.start()

    with_executor(work, bench="NoSuchBench")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_hanging_child_dies_with_the_agent(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from worker.bench import Subject
from worker.executor import ChildConfig, Executor
from proto.values import Limits
async def main():
    executor = Executor(ChildConfig(2, "fault_bench:FaultBench"), os.environ)
    await executor.start()
    print(executor.child_pid, flush=True)
    await executor.measure(Subject("", sys.argv[1], "hang", ()), Limits(run_timeout_s=3600.0))
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
