"""A service of real processes over one folder, whose processes can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from records.storage.database import Database
from tests.faults.process import CLOCK_VARIABLE
from tests.services import sqlite
from tunefarm.embedded.supervision import DIE_WITH_PARENT

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
SWEEP_S = 0.5
POLL_S = 0.02


class TimedOut(Exception):
    """A condition did not become true in time; the message names it and ends with the processes' last
    output."""


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


@dataclass
class Rig:
    """Server and scheduler over one SQLite database.

    Workers reach the server at `host`; `worker_prefix` comes before a worker's command, such as `ip netns
    exec`.
    """

    folder: Path
    host: str = "127.0.0.1"
    worker_prefix: tuple[str, ...] = ()
    token: str = field(default_factory=secrets.token_urlsafe)
    server: Program = field(init=False)
    scheduler: Program = field(init=False)
    database: Database = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.folder.chmod(0o711)  # candidates may run as another user, and write notes here
        (self.folder / "clock").write_text("0")
        self.data.mkdir(exist_ok=True)
        self._ports = free_port(self.host), free_port(self.host)
        self.server = self.program("server")
        self.scheduler = self.program("scheduler")
        self.database = Database(sqlite(self.database_file))

    @property
    def data(self) -> Path:
        """The folder of the database, the broker's files and uploads."""
        return self.folder / "data"

    @property
    def database_file(self) -> Path:
        return self.data / "tunefarm.db"

    @property
    def fleet(self) -> str:
        """The gRPC address for workers."""
        return f"{self.host}:{self._ports[1]}"

    def program(self, kind: str, *flags: str, name: str = "", **more: str) -> Program:
        command = (sys.executable, "-P", "-m", "tests.faults.process", kind, *flags)
        prefix = self.worker_prefix if kind == "worker" else ()
        environment = self._environment() | more
        return Program((*prefix, *command), environment, self.folder / f"{name or kind}.log")

    def start(self) -> None:
        """Start both and return when the server answers. Raises TimedOut."""
        self.server.start()
        self.scheduler.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        self.wait_until(self._answers, lambda: "the server did not answer")

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"http://{self.host}:{self._ports[0]}"
        return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=20)

    def step_clock(self, seconds: float) -> None:
        """Set the clock of server and scheduler ahead, or back by negative seconds."""
        clock = self.folder / "clock"
        fresh = self.folder / "clock.new"
        fresh.write_text(str(float(clock.read_text()) + seconds))
        fresh.replace(clock)

    def wait_until(self, true: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        """Raises TimedOut with the words of `otherwise` after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                words = [f"{one.log.name}:\n{one.output()[-3000:]}" for one in (self.server, self.scheduler)]
                raise TimedOut("\n".join([otherwise(), *words]))
            time.sleep(POLL_S)

    def close(self) -> None:
        for program in (self.scheduler, self.server):
            program.stop()
        self.database.close()

    def _answers(self) -> bool:
        try:
            with self.http() as http:
                return http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
        return kept | {
            "PYTHONPATH": str(ROOT),
            "no_proxy": self.host,
            "TUNEFARM_DATABASE_URL": f"sqlite:///{self.database_file}",
            "TUNEFARM_BROKER": str(self.data / "broker"),
            "TUNEFARM_HOST": self.host,
            "TUNEFARM_PORT": str(self._ports[0]),
            "TUNEFARM_GRPC_PORT": str(self._ports[1]),
            "TUNEFARM_TOKEN": self.token,
            "TUNEFARM_SCHEDULER_NAME": "scheduler",
            "TUNEFARM_SWEEP_INTERVAL_S": str(SWEEP_S),
            "TUNEFARM_BATCH_SIZE": "8",
            "TUNEFARM_RATE_LIMIT": "off",
            "TUNEFARM_WORKER_PROFILES": str(self.folder / "profiles"),
            CLOCK_VARIABLE: str(self.folder / "clock"),
        }


@contextlib.contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
