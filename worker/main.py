"""`python -m worker`: one worker, until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path

from rich.console import Console

from core.worker import Role
from system.settings import SettingsError, read_settings
from worker.agent.agent import Agent, AgentConfig, Fenced
from worker.agent.display import Display, display
from worker.agent.health import HealthMonitor
from worker.agent.profile_cache import ProfileCache
from worker.agent.service import FleetClient, WorkerRefused, open_channel
from worker.runner.executor import ChildConfig, Executor
from worker.sandbox import isolation
from worker.sandbox.file_transfer import linker_cache
from worker.settings import TOGETHER, Settings

_log = logging.getLogger(__name__)

# What zig calls the place of its cache.
LINKERS_CACHE = "ZIG_GLOBAL_CACHE_DIR"


class ExitCode(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 2
    FENCED = 3


def main(arguments: Sequence[str]) -> int:
    """The exit code. Every end that is not asked for is explained in one line on standard error."""
    try:
        settings = _settings(arguments)
        with display(Console(stderr=True)) as shown:
            isolation.hide_memory()
            asyncio.run(_work(settings, shown))
    except SettingsError as problem:
        print(f"tunefarm worker: {problem}", file=sys.stderr)
        return ExitCode.USAGE
    except Fenced as problem:
        print(f"tunefarm worker: {problem}", file=sys.stderr)
        return ExitCode.FENCED
    except WorkerRefused as problem:
        print(f"tunefarm worker: {problem}", file=sys.stderr)
        return ExitCode.REFUSED
    return ExitCode.OK


async def _work(settings: Settings, shown: Display) -> None:
    """Until SIGTERM or SIGINT. Raises Fenced, WorkerRefused and SettingsError."""
    tls = settings.tls_files
    if settings.secret and tls is None and not settings.local:
        _log.warning("the token crosses the network in clear: use --tls if the service does TLS")
    with _executor(settings) as executor:
        async with open_channel(settings.server, settings.reconnect_max_s, tls) as channel:
            fleet = FleetClient(channel, settings.server, settings.secret, settings.reconnect_max_s)
            config = _agent_config(settings)
            shown.show(f"connecting to {settings.server} as {settings.name}")
            answered = partial(_note_life, settings.alive_file)
            about = HealthMonitor(), answered, ProfileCache(settings.profiles)
            agent = Agent(settings.name, uuid.uuid4().hex, fleet, executor, config, shown, *about)
            running = asyncio.create_task(agent.run())
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, running.cancel)
            try:
                await running
            except asyncio.CancelledError:
                shown.show("stopping: gives back what it holds")
            await agent.farewell()


@contextlib.contextmanager
def _executor(settings: Settings) -> Iterator[Executor]:
    environment = dict(os.environ)
    user, builds = settings.child_user, settings.build
    child = ChildConfig(
        settings.threads,
        start_timeout_s=settings.start_timeout_s,
        user=user,
        builds=builds,
        without=settings.without,
    )
    with contextlib.ExitStack() as kept:
        if builds and LINKERS_CACHE not in environment:
            environment[LINKERS_CACHE] = str(kept.enter_context(linker_cache(user)))
        yield Executor(child, environment)


def _agent_config(settings: Settings) -> AgentConfig:
    return AgentConfig(
        settings.slots,
        build_together=min(settings.slots, TOGETHER),
        once=settings.once,
        role=Role.BUILD if settings.build else Role.MEASURE,
        override_limits=settings.override_limits,
    )


def _note_life(file: Path | None) -> None:
    """Where that fails, the age of the file says so."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.touch()


def _settings(arguments: Sequence[str]) -> Settings:
    """Raises SettingsError."""
    parser = argparse.ArgumentParser(
        prog="tunefarm worker", description="Measures candidates on this device for a tunefarm service."
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="the service's gRPC port")
    parser.add_argument("--token", help="the service's secret; TUNEFARM_TOKEN keeps it out of process lists")
    parser.add_argument("--tls", action="store_true", default=None, help="speak TLS with the service")
    parser.add_argument("--ca", metavar="FILE", help="who may vouch for the service; public ones by default")
    parser.add_argument("--cert", metavar="FILE", help="this worker's certificate, for mutual TLS")
    parser.add_argument("--key", metavar="FILE", help="the certificate's key")
    parser.add_argument("--name", help="this worker's name, unique in the service; the host's by default")
    parser.add_argument("--threads", type=int, help="cores to measure on; all real ones by default")
    parser.add_argument(
        "--features", metavar="-NAME,...", help="instruction sets to do without, such as -avx512f or -avx"
    )
    parser.add_argument(
        "--build", action="store_true", default=None, help="measure nothing, build what other devices measure"
    )
    parser.add_argument("--once", action="store_true", default=None, help="end after one lease")
    return read_settings(Settings, vars(parser.parse_args(_joined(arguments))))


def _joined(arguments: Sequence[str]) -> list[str]:
    """argparse takes what begins with a dash for a flag, not for the value of one."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--features":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
