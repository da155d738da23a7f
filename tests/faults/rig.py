"""A service of real processes on one folder. Its processes can be killed and restarted."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from records.storage.database import Database
from tests.faults.process import CLOCK_VARIABLE
from tests.services import sqlite
from tunefarm.embedded.supervision import DIE_WITH_PARENT

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
SWEEP_S = 0.5
POLL_S = 0.1


class TimedOut(Exception):
    """A condition did not become true in time; the message names it and ends with the processes' last
    output."""


class ActiveTime:
    """Seconds since its creation, without the time in which this machine was suspended."""

    _LONGEST_S = 1.0

    def __init__(self) -> None:
        self._total_s = 0.0
        self._last = time.monotonic()

    def __call__(self) -> float:
        """Return the seconds. Call it often: a longer pause counts as one second."""
        now = time.monotonic()
        self._total_s += min(now - self._last, self._LONGEST_S)
        self._last = now
        return self._total_s


@dataclass
class Program:
    """A process that can be killed and started again; `log` keeps its output."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self.command],
                env=dict(self.environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, as the kernel does when memory runs out, and wait for the end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        return None if self.process is None else self.process.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass(frozen=True)
class Backends:
    """A database, and a broker for wake-ups."""

    database_url: str
    broker: str


@dataclass
class Rig:
    """As many servers and schedulers as `replicas` over one SQLite database, with a folder as the broker.

    Workers reach the servers at `host`; `worker_prefix` comes before a worker's command, such as `ip netns
    exec`. `settings` are environment variables of all processes. With an `authority`, the servers speak TLS
    with certificates of that authority.
    """

    folder: Path
    host: str = "127.0.0.1"
    worker_prefix: tuple[str, ...] = ()
    replicas: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    authority: Path | None = None
    token: str = field(default_factory=secrets.token_urlsafe)
    servers: list[Program] = field(init=False)
    schedulers: list[Program] = field(init=False)
    database: Database = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.folder.chmod(0o711)  # candidates may run as another user, and write notes here
        (self.folder / "clock").write_text("0")
        self.data.mkdir(exist_ok=True)
        numbers = range(self.replicas)
        self._ports = [(free_port(self.host), free_port(self.host)) for _ in numbers]
        self.servers = [
            self.program(
                "server",
                name=f"server-{number + 1}",
                TUNEFARM_PORT=str(self._ports[number][0]),
                TUNEFARM_GRPC_PORT=str(self._ports[number][1]),
            )
            for number in numbers
        ]
        self.schedulers = [
            self.program(
                "scheduler",
                name=f"scheduler-{number + 1}",
                TUNEFARM_SCHEDULER_NAME=f"scheduler-{number + 1}",
            )
            for number in numbers
        ]
        self.database = Database(self.backends("rig").database_url)
        self.database.migrate()

    @property
    def data(self) -> Path:
        """The folder of the database, the broker's files and uploads."""
        return self.folder / "data"

    @property
    def database_file(self) -> Path:
        return self.data / "tunefarm.db"

    @property
    def fleets(self) -> list[tuple[str, int]]:
        """Host and gRPC port of every server."""
        return [(self.host, port) for _, port in self._ports]

    def fleet(self, worker: str) -> str:
        """Return the gRPC address by which a worker reaches a server."""
        host, port = self.fleets[0]
        return f"{host}:{port}"

    def backends(self, name: str) -> Backends:
        """Return how the process with this name connects to the database and the broker."""
        return Backends(sqlite(self.database_file), str(self.data / "broker"))

    def program(self, kind: str, *flags: str, name: str = "", **more: str) -> Program:
        command = (sys.executable, "-P", "-m", "tests.faults.process", kind, *flags)
        prefix = self.worker_prefix if kind == "worker" else ()
        environment = self._environment(name or kind) | more
        return Program((*prefix, *command), environment, self.folder / f"{name or kind}.log")

    def start(self) -> None:
        """Start all processes and wait until the servers answer. Raises TimedOut."""
        for program in (*self.servers, *self.schedulers):
            program.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until every server answers. Raises TimedOut."""
        for number in range(self.replicas):
            self.wait_until(partial(self._answers, number), lambda: "a server did not answer")

    def http(self, number: int = 0) -> httpx.Client:
        """Return a client of one of the servers."""
        headers = {"Authorization": f"Bearer {self.token}"}
        scheme = "https" if self.authority else "http"
        url = f"{scheme}://{self.host}:{self._ports[number][0]}"
        verify = ssl.create_default_context(cafile=str(self.authority)) if self.authority else False
        return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=20, verify=verify)

    def step_clock(self, seconds: float) -> None:
        """Set the clock of server and scheduler ahead, or back by negative seconds."""
        step_file(self.folder / "clock", seconds)

    def wait_until(
        self, true: Callable[[], bool], otherwise: Callable[[], str], patience_s: float = PATIENCE_S
    ) -> None:
        """Raises TimedOut with the words of `otherwise` after `patience_s`."""
        waited = ActiveTime()
        while not true():
            if waited() > patience_s:
                programs = (*self.servers, *self.schedulers)
                words = [f"{one.log.name}:\n{one.output()[-3000:]}" for one in programs]
                raise TimedOut("\n".join([otherwise(), *words]))
            time.sleep(POLL_S)

    def close(self) -> None:
        for program in (*self.schedulers, *self.servers):
            program.stop()
        self.database.close()

    def _answers(self, number: int) -> bool:
        try:
            with self.http(number) as http:
                return http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _environment(self, name: str) -> dict[str, str]:
        backends = self.backends(name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
        return kept | {
            "PYTHONPATH": str(ROOT),
            "no_proxy": self.host,
            "TUNEFARM_DATABASE_URL": backends.database_url,
            "TUNEFARM_BROKER": backends.broker,
            "TUNEFARM_HOST": self.host,
            "TUNEFARM_TOKEN": self.token,
            "TUNEFARM_SWEEP_INTERVAL_S": str(SWEEP_S),
            "TUNEFARM_BATCH_SIZE": "8",
            "TUNEFARM_RATE_LIMIT": "off",
            "TUNEFARM_WORKER_PROFILES": str(self.folder / "profiles"),
            CLOCK_VARIABLE: str(self.folder / "clock"),
            **self.settings,
        }


@contextlib.contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def step_file(clock: Path, seconds: float) -> None:
    """Add seconds to the number in a clock file, at once."""
    fresh = clock.with_name(f"{clock.name}.new")
    fresh.write_text(str(float(clock.read_text()) + seconds))
    fresh.replace(clock)


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
