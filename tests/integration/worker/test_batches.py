"""Build candidates in parallel in a child. Some of them crash it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from core.lease import Limits
from core.measurement import Outcome
from tests.integration.worker.executors import (
    GENEROUS,
    HASTY_BUILD_ALONG,
    build_request,
    child_of_next,
    gone,
    measure_all,
    measuring_process,
    outcomes,
    with_executor,
)
from tests.marks import slow_lane_except
from worker.runner.executor import Executor


@pytest.mark.parametrize("fault", slow_lane_except(["build segfault", "build hang"], "build segfault"))
def test_a_candidate_does_not_fail_because_of_another_in_the_batch(fault: str) -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        guilty = build_request(fault)
        innocent = await executor.measure(build_request("ok"), HASTY_BUILD_ALONG, [guilty])
        assert innocent.outcome is Outcome.OK
        assert innocent.build_s != first, "the child that died with both was replaced"
        alone = await executor.measure(guilty, HASTY_BUILD_ALONG)
        assert alone.outcome in (Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT)

    with_executor(work)


@pytest.mark.parametrize(
    ("fault", "limits", "outcome", "says"),
    [
        ("kill", GENEROUS, "build_error", "SIGKILL during the build"),
        ("segfault", GENEROUS, "build_error", "about to follow a bad pointer"),
        ("exit", GENEROUS, "build_error", "exited with code 3"),
        ("raise", GENEROUS, "build_error", "a bug in the runner"),
        pytest.param(
            *("hang", HASTY_BUILD_ALONG, "build_timeout", "the build took longer than 2 s"),
            marks=pytest.mark.slow,
        ),
        ("refuse", GENEROUS, "build_error", "no such loop"),
    ],
)
@pytest.mark.parametrize("place", slow_lane_except([0, 3, 5], 3))
def test_only_the_crashing_candidate_of_a_batch_fails(
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
        assert {one.build_s for one in measurements} == {first}

    with_executor(work)


def test_no_candidate_fails_when_the_child_is_killed_while_it_builds(tmp_path: Path) -> None:
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


def test_no_candidate_fails_when_the_child_is_killed_while_idle() -> None:
    async def work(executor: Executor) -> None:
        first = await child_of_next(executor)
        process = measuring_process(executor)
        process.kill()
        while not gone(process.pid):
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
        assert {one.build_s for one in measurements} == {first}

    with_executor(work)


def test_a_candidate_that_lacked_memory_among_others_is_built_alone() -> None:
    async def work(executor: Executor) -> None:
        traces = ["build crowded", "build ok", "build crowded 2"]
        assert outcomes(await measure_all(executor, traces, GENEROUS)) == ["ok", "ok", "ok"]

    with_executor(work)


def test_a_candidate_does_not_fail_because_of_an_earlier_candidate() -> None:
    async def work(executor: Executor) -> None:
        assert outcomes([await executor.measure(build_request("run plant"), GENEROUS)]) == ["ok"]
        assert outcomes([await executor.measure(build_request("build trip"), GENEROUS)]) == ["ok"]

    with_executor(work)


def test_replies_about_other_candidates_are_rejected() -> None:
    async def work(executor: Executor) -> None:
        measurements = await measure_all(executor, ["build ok", "build ok 2"], GENEROUS)
        assert outcomes(measurements) == ["build_error", "build_error"]
        assert all("makes no sense" in measurement.error for measurement in measurements)
        assert executor.child_pid is None

    with_executor(work, runner="LyingRunner")
