"""Connect a command to the running service, or start a service for the time that the command runs."""

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

NATIVE = "native"
DEVICE_TIMEOUT_S = 120.0
POLL_S = 0.2


@dataclass(frozen=True)
class Service:
    """A connection to a service. `embedded`: it was started for this command. `alone`: it is only a server
    over the data folder.

    `check` raises StackError if an embedded one has broken down, or its device can't measure.
    """

    client: Client
    check: Callable[[], None] = lambda: None
    embedded: bool = False
    alone: bool = False

    def known_target(self, target: str) -> str:
        """Return the target to look up. Beside a server alone, no worker is `native`, so the class of the
        worker that was seen last takes its place.
        """
        if target != NATIVE or not self.alone:
            return target
        seen = [worker for worker in self.client.workers() if worker.device_class is not None]
        newest = max(seen, key=lambda worker: worker.last_seen_at, default=None)
        return target if newest is None else str(newest.device_class)


@contextlib.contextmanager
def connect(settings: CommandSettings) -> Iterator[Service]:
    """Connect to the service of `--server`, or the one that has locked the data folder.

    Raises CommandError if there is neither.
    """
    url = settings.server or _running_url(settings, only_lasting=False)
    if url is None:
        raise CommandError(
            "no service is running here: start one with `tunefarm up` or name one with --server URL",
            ExitCode.UNREACHABLE,
        )
    with _client(url, settings) as client:
        yield Service(client)


@contextlib.contextmanager
def connect_or_open(settings: CommandSettings) -> Iterator[Service]:
    """Connect as `connect` does. If no service runs, start a server over the data folder until the context
    ends.

    Without a scheduler and a worker, jobs make no progress. Raises the exceptions of `connect` and
    `stack.start`.
    """
    has_database = _folder(settings).database_file.exists()
    if settings.server or _running_url(settings, only_lasting=False) or not has_database:
        with connect(settings) as service:
            yield service
        return
    from tunefarm.embedded import stack

    config = stack.StackConfig(settings.data, token=settings.secret, server_alone=True)
    with stack.start(config) as started, _client(started.running.url, settings) as client:
        yield Service(client, started.check, alone=True)


@contextlib.contextmanager
def connect_or_start(
    settings: CommandSettings, say: Callable[[str], None], features: str | None = None
) -> Iterator[Service]:
    """Connect as `connect` does. If no service runs, start one until the context ends.

    The worker of a started service doesn't use the instruction sets in `features`. Raises CommandError and
    the exceptions of `stack.start`.
    """
    url = settings.server or _running_url(settings, only_lasting=True)
    if url is not None:
        if features:
            raise CommandError(
                f"the service at {url} has its workers already: give --features to one of them, "
                "`tunefarm worker --features`, and name its class with --target",
                ExitCode.USAGE,
            )
        with _client(url, settings) as client:
            yield Service(client)
        return
    from tunefarm.embedded import stack

    say("starting the service for this job")
    config = stack.StackConfig(
        settings.data, token=settings.secret, threads=settings.threads, features=features
    )
    with stack.start(config) as started, _client(started.running.url, settings) as client:
        yield Service(client, StackMonitor(started, client).check, embedded=True)


class StackMonitor:
    """Monitors the processes and the workers of a stack that this command has started."""

    def __init__(self, stack: Stack, client: Client) -> None:
        self._stack = stack
        self._client = client
        # The database may have workers of an earlier stack. Workers of this stack are those whose report has
        # changed since it started.
        self._first_seen_at: dict[str, float] = {}

    def check(self) -> None:
        """Raise StackError if a process won't be restarted, or if no connected worker can measure."""
        self._stack.check()
        workers = self.workers()
        if workers and all(worker.health_error for worker in workers):
            log = self._stack.supervisor.log("worker")
            raise StackError(f"worker {workers[0].id} {workers[0].unable} (see {log})")

    def workers(self) -> list[Worker]:
        """Return the measuring workers that have called this stack; none while its server is unavailable."""
        found = []
        with contextlib.suppress(ClientError):
            for worker in self._client.workers():
                first_seen_at = self._first_seen_at.setdefault(worker.id, worker.last_seen_at)
                is_here = worker.connected and worker.last_seen_at != first_seen_at
                if is_here and worker.role != "build":
                    found.append(worker)
        return found


def wait_for_device(service: Service, target: str) -> None:
    """Wait until the worker of an embedded stack has registered its device, which `native` refers to.

    Raises CommandError if that takes too long.
    """
    deadline = time.monotonic() + DEVICE_TIMEOUT_S
    while service.embedded and target == NATIVE:
        service.check()
        workers = [worker for worker in service.client.workers() if worker.connected]
        if any(worker.state in ("ready", "busy") and worker.device_class for worker in workers):
            return
        if time.monotonic() > deadline:
            raise CommandError(
                "the local worker is not ready: name a device class with --target", ExitCode.LOCAL
            )
        time.sleep(POLL_S)


def _running_url(settings: CommandSettings, *, only_lasting: bool) -> str | None:
    """Return the URL of the stack that has locked the data folder, if any."""
    running = _folder(settings).running()
    return running.url if running and (running.lasting or not only_lasting) else None


def _folder(settings: CommandSettings) -> DataFolder:
    return DataFolder(settings.data.expanduser())


def _client(url: str, settings: CommandSettings) -> Client:
    try:
        return Client(url, settings.secret, tls=settings.tls)
    except ValueError as error:
        raise CommandError(f"--server is not an address: {error}", ExitCode.USAGE) from error
