"""The worker's process: one agent, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.exit_code import ExitCode
from core.worker import Role
from sandbox import privileges
from sandbox.cache_seed import ZIG_CACHE
from system import tracing
from system.command import CommandError, run_function
from system.energy import EnergyMeter
from system.errors import SettingsError
from system.linux import boot_id
from system.scratch import scratch_folder
from system.settings import read_settings
from worker.agent.agent import Agent, AgentConfig, AgentTools, Fenced, UpdateRequested
from worker.agent.display import Display, display
from worker.agent.gpus import ONLY_GPU, VISIBLE_DEVICES_VARIABLE, GpuVitals, choose_gpu
from worker.agent.health import HealthMonitor
from worker.agent.profile_cache import ProfileCache
from worker.agent.service import FleetClient, WorkerRefused, open_channel
from worker.runner.executor import CPU_RUNNER, GPU_RUNNER, ChildConfig, Executor
from worker.settings import WorkerSettings, usable_cpus

_log = logging.getLogger(__name__)


def worker(
    context: typer.Context,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The service's gRPC port.")] = None,
    token: Annotated[
        str | None,
        typer.Option(help="The service's secret; TUNEFARM_TOKEN keeps it out of process lists."),
    ] = None,
    tls: Annotated[bool | None, typer.Option("--tls", help="Speak TLS with the service.")] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The authority of the service's certificate; public ones by default."
        ),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This worker's certificate, for mutual TLS.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="This worker's name, unique in the service; the host's by default."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Cores to measure on; all physical ones by default.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="-NAME,...", help="Instruction sets to give up, such as -avx512f or -avx."),
    ] = None,
    build: Annotated[
        bool | None, typer.Option("--build", help="Measure nothing; build candidates for other devices.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="[INDEX]",
            help="Measure a GPU or a slice of one: the only one, or the one with this index.",
        ),
    ] = None,
    once: Annotated[bool | None, typer.Option("--once", help="End after one lease.")] = None,
) -> None:
    """Measure candidates on this device for a tunefarm service."""
    settings = read_settings(WorkerSettings, context.params)
    try:
        with display(Console(stderr=True)) as shown, scratch_folder("worker"), tracing.exported("worker"):
            privileges.hide_memory()
            asyncio.run(_work(settings, shown))
    except Fenced as error:
        raise CommandError(str(error), ExitCode.FENCED) from error
    except UpdateRequested as error:
        raise CommandError(str(error), ExitCode.UPDATE) from error
    except WorkerRefused as error:
        raise CommandError(str(error), ExitCode.REFUSED) from error


def main(arguments: Sequence[str]) -> int:
    """Work until SIGTERM or SIGINT. Return the exit code."""
    # Typer doesn't support options with an optional value.
    given = list(arguments)
    for place in (index for index, word in enumerate(arguments) if word == "--gpu"):
        if place + 1 == len(given) or given[place + 1].startswith("-"):
            given[place] = f"--gpu={ONLY_GPU}"
    return run_function(worker, "tunefarm worker", given)


async def _work(settings: WorkerSettings, shown: Display) -> None:
    """Run an agent until SIGTERM or SIGINT. Raises Fenced, WorkerRefused, UpdateRequested and
    SettingsError."""
    tls = settings.tls_files
    if settings.secret and tls is None and not settings.local:
        _log.warning("the token is sent in clear: use --tls if the service uses TLS")

    def touch_alive_file() -> None:
        if settings.alive_file is not None:
            with contextlib.suppress(OSError):  # the file's age shows the failure to watchers
                settings.alive_file.touch()

    environment, read_vitals, runner = dict(os.environ), HealthMonitor(), CPU_RUNNER
    hardware = () if settings.build else usable_cpus()
    if settings.gpu is not None:
        gpu = choose_gpu(settings.gpu)
        hardware = (gpu.uuid,)
        environment[VISIBLE_DEVICES_VARIABLE] = gpu.uuid
        read_vitals, runner = HealthMonitor(read=GpuVitals(gpu)), GPU_RUNNER
    async with contextlib.AsyncExitStack() as stack:
        if (settings.build or settings.gpu is not None) and ZIG_CACHE in environment:
            _make_cache(Path(environment[ZIG_CACHE]))
        child = ChildConfig(
            settings.threads,
            runner,
            start_timeout_s=settings.start_timeout_s,
            user=settings.child_user,
            builds=settings.build,
            gpu=settings.gpu is not None,
            without=settings.without,
            require_sandbox=settings.require_sandbox,
        )
        builder = replace(child, threads=settings.build_threads, runner=CPU_RUNNER, builds=True)
        channel = await stack.enter_async_context(
            open_channel(settings.server, settings.reconnect_max_s, tls)
        )
        agent = Agent(
            settings.name,
            uuid.uuid4().hex,
            FleetClient(channel, settings.server, settings.secret, settings.reconnect_max_s),
            Executor(child, environment),
            agent_config(settings, hardware),
            AgentTools(
                shown,
                read_vitals,
                touch_alive_file,
                ProfileCache(settings.profiles),
                Executor(builder, environment) if settings.gpu is not None else None,
                EnergyMeter.find if settings.gpu is None else lambda: None,
            ),
        )
        shown.show(f"connecting to {settings.server} as {settings.name}")
        running = asyncio.create_task(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            shown.show("stopping: returning its lease")
        except UpdateRequested:
            await agent.farewell()
            raise
        await agent.farewell()


def _make_cache(folder: Path) -> None:
    """Create the folder of zig's cache. Raises SettingsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{ZIG_CACHE} names {folder}, which can't be made: {error.strerror}") from error


def agent_config(settings: WorkerSettings, hardware: tuple[str, ...] = ()) -> AgentConfig:
    """Return the agent's configuration from the settings. `hardware` names what it measures on."""
    return AgentConfig(
        settings.slots,
        build_together=settings.build_together,
        once=settings.once,
        role=Role.BUILD if settings.build else Role.MEASURE,
        override_limits=settings.override_limits,
        boot_id=boot_id(),
        hardware=hardware,
        updates=settings.updates,
    )
