"""Finds the service that a command talks to, or starts one for as long as the command runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.client.client import Client, ClientError
from tunefarm.client.values import Worker
from tunefarm.embedded.folder import DataFolder
from tunefarm.errors import StackError
from tunefarm.settings import CommandSettings

if TYPE_CHECKING:
    from tunefarm.embedded.stack import Stack

DEVICE_TIMEOUT_S = 120.0
POLL_S = 0.2


@dataclass(frozen=True)
class Service:
    """A client, and a check that raises StackError when a stack started for the command has broken down, or
    can't measure."""

    client: Client
    check: Callable[[], None]
    embedded: bool


@contextlib.contextmanager
def connect(settings: CommandSettings) -> Iterator[Service]:
    """The service at `--server`, or the one that owns the data folder. Raises CommandError without either."""
    url = settings.server or _running_at(settings, lasting=False)
    if url is None:
        raise CommandError(
            "no service is running here: start one with `tunefarm up` or name one with --server URL",
            ExitCode.UNREACHABLE,
        )
    with _connect(url, settings) as client:
        yield Service(client, _nothing_to_check, embedded=False)


@contextlib.contextmanager
def connect_or_start(
    settings: CommandSettings, say: Callable[[str], None], features: str | None = None
) -> Iterator[Service]:
    """As `connect`, but where none runs, one is started for the length of the context, whose worker
    gives up the instruction sets that `features` names."""
    url = settings.server or _running_at(settings, lasting=True)
    if url is not None:
        if features:
            raise CommandError(
                f"the service at {url} has its workers already: give --features to one of them, "
                "`tunefarm worker --features`, and name its class with --target",
                ExitCode.USAGE,
            )
        with _connect(url, settings) as client:
            yield Service(client, _nothing_to_check, embedded=False)
        return
    from tunefarm.embedded import stack

    say("starting the service for this job")
    config = stack.StackConfig(
        settings.data, token=settings.secret, threads=settings.threads, features=features
    )
    with stack.start(config) as started, _connect(started.running.url, settings) as client:
        yield Service(client, StackMonitor(started, client).check, embedded=True)


class StackMonitor:
    """A stack that was started for the command, or by it."""

    def __init__(self, stack: Stack, client: Client) -> None:
        self._stack = stack
        self._client = client
        # What a worker of an earlier stack said last is no news: one of this stack has been seen since.
        self._first_seen_at: dict[str, float] = {}

    def check(self) -> None:
        """Raises StackError when a process has ended for good, or no worker that is there can measure."""
        self._stack.check()
        there = self.workers()
        if there and all(one.trouble for one in there):
            log = self._stack.supervisor.log("worker")
            raise StackError(f"worker {there[0].id} {there[0].unable} (see {log})")

    def workers(self) -> list[Worker]:
        """Those that measure and have called this stack; none while its server can't be asked."""
        found = []
        with contextlib.suppress(ClientError):
            for one in self._client.workers():
                first_seen_at = self._first_seen_at.setdefault(one.id, one.last_seen_at)
                if one.connected and one.last_seen_at != first_seen_at and one.role != "build":
                    found.append(one)
        return found


def wait_for_device(service: Service, target: str | None) -> None:
    """On a stack that was just started, waits until its worker says what `native` means.

    Raises CommandError when that takes too long.
    """
    deadline = time.monotonic() + DEVICE_TIMEOUT_S
    while connect_or_start.embedded and target in (None, "native"):
        connect_or_start.check()
        workers = connect_or_start.client.workers()
        if any(worker.state in ("ready", "busy") and worker.device_class for worker in workers):
            return
        if time.monotonic() > deadline:
            raise CommandError(
                "the local worker is not ready: name a device class with --target", ExitCode.LOCAL
            )
        time.sleep(POLL_S)


def _running_at(settings: CommandSettings, *, lasting: bool) -> str | None:
    """The address of the stack that owns the data folder; only of one started by `up` if `lasting`."""
    running = DataFolder(settings.data).running()
    return running.url if running and (running.lasting or not lasting) else None


def _connect(url: str, settings: CommandSettings) -> Client:
    try:
        return Client(url, settings.secret, tls=settings.tls)
    except ValueError as error:
        raise CommandError(f"--server is not an address: {error}", ExitCode.USAGE) from error


def _nothing_to_check() -> None:
    """A service that was not started here has no processes to look after."""
