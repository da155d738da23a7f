"""An agent with a real child, connected to an in-memory service."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from core.worker import Role, WorkerState
from system.energy import EnergyMeter
from tests.integration.worker.executors import OWNER, SHARED
from tests.integration.worker.fake_fleet import FakeFleet
from worker.agent.agent import Agent, AgentConfig, AgentTools
from worker.agent.profile_cache import ProfileCache
from worker.agent.service import FleetClient, open_channel
from worker.runner.executor import ChildConfig, Executor

HERE = Path(__file__).parent


RECONNECT_MAX_S = 0.1


BRISK = AgentConfig(slots=4, wait_s=0.05, probe_again_max_s=0.05)


@dataclass
class Worker:
    agent: Agent
    executor: Executor
    running: asyncio.Task[None]


@contextlib.asynccontextmanager
async def working(
    fleet: FakeFleet,
    config: AgentConfig = BRISK,
    session: str = "session",
    token: str | None = None,
    profiles: ProfileCache | None = None,
    builder: ChildConfig | None = None,
    find_meter: Callable[[], EnergyMeter | None] = lambda: None,
    **env: str,
) -> AsyncIterator[Worker]:
    builds = config.role is Role.BUILD
    address = f"127.0.0.1:{fleet.port}"
    environment = {**os.environ, "PYTHONPATH": str(HERE), **env}
    async with open_channel(address, RECONNECT_MAX_S) as channel:
        client = FleetClient(channel, address, token, RECONNECT_MAX_S)
        executor = Executor(
            ChildConfig(2, "fault_runner:FaultRunner", user=OWNER, builds=builds, writable=SHARED),
            environment,
        )
        ahead = None if builder is None else Executor(builder, environment)
        tools = AgentTools(profiles=profiles, builder=ahead, find_meter=find_meter)
        agent = Agent("board", session, client, executor, config, tools)
        running = asyncio.create_task(agent.run())
        try:
            yield Worker(agent, executor, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def with_fleet(work: Callable[[FakeFleet], Awaitable[None]]) -> None:
    async def run() -> None:
        fleet = FakeFleet()
        await fleet.start()
        try:
            await work(fleet)
        finally:
            await fleet.stop()

    asyncio.run(run())


def states(fleet: FakeFleet) -> list[WorkerState]:
    """Return the reported states, without repetitions."""
    seen = [report.state for report in fleet.reports]
    return [state for i, state in enumerate(seen) if i == 0 or seen[i - 1] is not state]


def in_state(fleet: FakeFleet, state: WorkerState) -> bool:
    return bool(fleet.reports) and fleet.reports[-1].state is state
