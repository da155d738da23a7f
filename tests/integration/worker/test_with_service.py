"""A real agent and a real server: trials that a device returns are queued again at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from core.job import JobState
from core.worker import WorkerState
from records import devices
from records.jobs import jobs, tasks, trials
from records.jobs.tasks import TaskSpec
from records.jobs.trials import NewTrial, Trial
from tests.devices import DEVICE
from tests.integration.server.conftest import Service, launch
from tests.integration.worker.executors import OWNER, SHARED
from worker.agent.agent import Agent, AgentConfig
from worker.agent.service import FleetClient, open_channel
from worker.runner.executor import ChildConfig, Executor

HERE = Path(__file__).parent
TIMEOUT_S = 60.0


def queue(service: Service, workload: str, *traces: str) -> str:
    """Submit a job that is being tuned, whose trials wait for the test board's device class."""
    job_id = service.submit()
    with service.database.begin() as session:
        devices.put_class(session, DEVICE)
        assert jobs.set_device_class(session, job_id, DEVICE.key)
        assert jobs.advance(session, job_id, {JobState.QUEUED}, JobState.TUNING, 1.0)
        tasks.put_workload(session, "w", workload)
        tasks.add_tasks(session, job_id, [TaskSpec(job_id, "w", "conv", 1, 1e6, True, "", ())])
        (task,) = tasks.for_job(session, job_id)
        trials.add(session, job_id, 1, [NewTrial(task.id, "w", None, trace, 1e-3) for trace in traces], 2.0)
    return job_id


def stored(service: Service, job_id: str) -> list[Trial]:
    with service.database.begin() as session:
        (task,) = tasks.for_job(session, job_id)
        return trials.for_task(session, task.id)


def states(service: Service, job_id: str) -> list[str]:
    return [trial.state for trial in stored(service, job_id)]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.02)


def with_agent(
    folder: Path, work: Callable[[Service, Agent, asyncio.Task[None]], Awaitable[None]], **env: str
) -> None:
    service, stop = launch(folder)

    async def run() -> None:
        address = f"127.0.0.1:{service.context.settings.grpc_port}"
        async with open_channel(address, 0.1) as channel:
            fleet = FleetClient(channel, address, None, 0.1)
            executor = Executor(
                ChildConfig(2, "fault_runner:FaultRunner", user=OWNER, writable=SHARED),
                {**os.environ, "PYTHONPATH": str(HERE), **env},
            )
            config = AgentConfig(4, 1.0, probe_again_max_s=0.05)
            agent = Agent("board", "session", fleet, executor, config)
            running = asyncio.create_task(agent.run())
            try:
                await work(service, agent, running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    try:
        asyncio.run(run())
    finally:
        stop()


def shown(service: Service) -> dict[str, object]:
    (worker,) = service.http.get("/v1/workers").json()["items"]
    return dict(worker)


def test_a_worker_that_stops_returns_unmeasured_trials(tmp_path: Path) -> None:
    async def work(service: Service, agent: Agent, running: asyncio.Task[None]) -> None:
        job_id = queue(service, str(tmp_path / "begun"), "ok", "hang", "ok 2")
        await until(lambda: states(service, job_id) == ["done", "leased", "leased"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await agent.farewell()
        assert (shown(service)["state"], shown(service)["connected"]) == ("offline", False)
        left = stored(service, job_id)
        assert [trial.state for trial in left] == ["done", "pending", "pending"]
        assert [trial.attempts for trial in left] == [0, 0, 0], "no device was lost"

    with_agent(tmp_path, work)


def test_an_evicted_workers_trials_are_free_and_resuming_continues(tmp_path: Path) -> None:
    async def work(service: Service, agent: Agent, running: asyncio.Task[None]) -> None:
        gate = tmp_path / "gate"
        job_id = queue(service, str(gate), "hang_once", "ok")
        await until(lambda: states(service, job_id) == ["leased", "leased"] and gate.exists())
        assert service.http.post("/v1/workers/board:evict").status_code == 200
        assert states(service, job_id) == ["pending", "pending"]
        await until(lambda: agent.state.value == "draining")
        assert shown(service)["desired_state"] == "evicted"
        assert service.http.post("/v1/workers/board:resume").status_code == 200
        await until(lambda: states(service, job_id) == ["done", "done"])
        assert [trial.outcome for trial in stored(service, job_id)] == ["ok", "ok"]
        assert [trial.attempts for trial in stored(service, job_id)] == [0, 0]

    with_agent(tmp_path, work)


@pytest.mark.slow
def test_a_drained_worker_finishes_its_lease_and_gets_no_other(tmp_path: Path) -> None:
    async def work(service: Service, agent: Agent, running: asyncio.Task[None]) -> None:
        gate = tmp_path / "gate"
        job_id = queue(service, str(gate), "wait_for_file", "ok", "ok 2", "ok 3", "ok 4", "ok 5")
        await until(lambda: states(service, job_id).count("leased") == 4)
        assert service.http.post("/v1/workers/board:drain").status_code == 200
        await until(lambda: shown(service)["state"] == "draining")
        assert shown(service)["lease"] is not None
        gate.touch()
        await until(lambda: shown(service)["lease"] is None)
        assert states(service, job_id) == ["done"] * 4 + ["pending"] * 2
        assert service.http.post("/v1/workers/board:resume").status_code == 200
        await until(lambda: states(service, job_id) == ["done"] * 6)
        await until(lambda: shown(service)["state"] == "ready")
        assert service.http.post("/v1/workers/board:drain").status_code == 200
        await until(lambda: shown(service)["state"] == "draining")

    with_agent(tmp_path, work)


def test_a_worker_whose_child_cannot_be_started_again_gives_its_lease_back(tmp_path: Path) -> None:
    async def work(service: Service, agent: Agent, running: asyncio.Task[None]) -> None:
        await until(lambda: agent.state is WorkerState.READY)
        (tmp_path / "sound").unlink()
        job_id = queue(service, "", "run exit", "ok", "ok 2")
        await until(lambda: shown(service)["health_error"] != "")
        assert "SIGILL" in str(shown(service)["health_error"])
        assert shown(service)["state"] == "probing"
        left = [(trial.state, trial.attempts) for trial in stored(service, job_id)]
        assert left == [("done", 0), ("pending", 0), ("pending", 0)], "no device was lost"
        assert "tunefarm_held_leases 0.0" in service.http.get("/metrics").text
        (tmp_path / "sound").touch()
        await until(lambda: states(service, job_id) == ["done"] * 3)
        outcomes = [trial.outcome for trial in stored(service, job_id)]
        assert outcomes == ["run_error", "ok", "ok"]
        assert [trial.attempts for trial in stored(service, job_id)] == [0, 0, 0]
        assert shown(service)["health_error"] == ""

    (tmp_path / "sound").touch()
    with_agent(tmp_path, work, TVM_FAULT_UNTIL=str(tmp_path / "sound"), TVM_FAULT_HOW="SIGILL")


def test_a_device_reports_its_health_error_until_recovery(tmp_path: Path) -> None:
    async def work(service: Service, agent: Agent, running: asyncio.Task[None]) -> None:
        await until(lambda: bool(service.http.get("/v1/workers").json()["items"]))
        assert shown(service)["state"] == "probing"
        await until(lambda: shown(service)["health_error"] != "")
        assert str(shown(service)["health_error"]).startswith(
            "its check was ended by SIGILL (illegal instruction): "
        )
        (tmp_path / "mended").touch()
        await until(lambda: shown(service)["state"] == "ready")
        assert shown(service)["health_error"] == ""

    with_agent(tmp_path, work, TVM_FAULT_UNTIL=str(tmp_path / "mended"), TVM_FAULT_HOW="SIGILL")


@pytest.mark.parametrize("action", ["drain", "resume", "evict"])
def test_an_unknown_worker_is_a_problem(tmp_path: Path, action: str) -> None:
    service, stop = launch(tmp_path)
    try:
        answer = service.http.post(f"/v1/workers/nobody:{action}")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:tunefarm:problem:worker-not-found")
        assert answer.json()["detail"] == "There is no worker 'nobody'."
    finally:
        stop()
