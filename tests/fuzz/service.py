"""Run a real server process with work to lease, and sample its memory and open files."""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import psutil

from benchmarks.simulated_workers import simulated_device
from core.job import Budget, Build, JobState
from core.tokens import Scope
from records import access, devices
from records.access import Token
from records.jobs import jobs, models, tasks, trials
from records.jobs.jobs import JobRequest
from records.jobs.trials import NewTrial
from records.storage import blobs
from records.storage.database import Database
from server.access.authentication import TOKEN_PREFIX, token_digest
from tests.faults.rig import PATIENCE_S, ROOT, Program, free_port
from tests.fuzz.fleet_messages import ServiceState

HOST = "127.0.0.1"
CLASSES = 4
TRIALS = 1000
WORKLOAD = "workload"
# The fraction of messages during which a process fills its caches, which is no leak.
WARM_UP = 0.25


class ServiceError(Exception):
    """The server can't be started. The message is one sentence for users."""


@dataclass
class Growth:
    """Samples of the server's memory and open files, each with the number of messages sent before."""

    messages: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def note(self, messages: int, memory_bytes: int, files: int) -> None:
        self.messages.append(messages)
        self.memory_bytes.append(memory_bytes)
        self.files.append(files)

    @property
    def bytes_per_message(self) -> float:
        """The slope of the line that fits the samples after the warm-up best; 0 with too few samples."""
        warm = self._warm()
        if len(warm) < 3:
            return 0.0
        counts = [float(self.messages[at]) for at in warm]
        return statistics.linear_regression(counts, [float(self.memory_bytes[at]) for at in warm]).slope

    @property
    def new_files(self) -> int:
        """Return how many more files are open at the end than after the warm-up."""
        warm = self._warm()
        return self.files[-1] - self.files[warm[0]] if warm else 0

    def _warm(self) -> list[int]:
        return [at for at, count in enumerate(self.messages) if count >= WARM_UP * self.messages[-1]]


@dataclass
class Service:
    """A running server. `worker` is a token with all scopes, `reader` one with the scope read."""

    program: Program
    database: Database
    http: str
    fleet: str
    worker: str
    reader: str
    blob: str = ""

    @property
    def known(self) -> ServiceState:
        found = [replace(one, profile=one.speeds) for one in map(simulated_device, range(CLASSES))]
        return ServiceState(found, WORKLOAD, self.blob)

    def ended(self) -> bool:
        return self.program.exit_code() is not None

    def sample(self, growth: Growth, messages: int) -> None:
        """Add a sample, unless the process is gone."""
        assert self.program.process is not None, "it was started"
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.program.process.pid)
            growth.note(messages, process.memory_info().rss, process.num_fds())

    def fill(self) -> None:
        """Store a job that is being tuned, with trials, for each device class."""
        with self.database.begin() as session:
            secret_sha, now = token_digest(self.reader), time.time()
            access.add_token(session, Token("reader", "reader", frozenset({Scope.READ}), now), secret_sha)
            self.blob = blobs.put(session, b"a model")
            models.add(session, self.blob, "model", now)
            tasks.put_workload(session, WORKLOAD, "{}")
        for number in range(CLASSES):
            self._add_job(number)
            self.offer(number, 1, TRIALS)

    def _add_job(self, number: int) -> None:
        job_id, device = _job_id(number), simulated_device(number)
        build = {0: Build.DEVICE, 1: Build.BUILDER}.get(number, Build.AUTO)
        request = JobRequest(self.blob, "model", {}, device.key, Budget(10 * TRIALS), build=build)
        with self.database.begin() as session:
            devices.put_class(session, device)
            jobs.create(session, job_id, request, jobs.Submission(time.time()))
            jobs.set_device_class(session, job_id, device.key)
            jobs.advance(session, job_id, {JobState.QUEUED}, JobState.TUNING, time.time())
            spec = tasks.TaskSpec(job_id, WORKLOAD, "conv", 1, 1e9, True, "", ())
            tasks.add_tasks(session, job_id, [spec])

    def offer(self, number: int, batch: int, count: int) -> None:
        """Store more trials for the devices of this number. Batches have different trials."""
        with self.database.begin() as session:
            (task,) = tasks.for_job(session, _job_id(number))
            new = [NewTrial(task.id, WORKLOAD, {"n": n}, f"[{batch},{n}]", 1e-3) for n in range(count)]
            trials.add(session, _job_id(number), batch, new, time.time())


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Service]:
    """Run a server on SQLite with its data in the folder. Raises ServiceError."""
    ports = free_port(HOST), free_port(HOST)
    url, token = f"sqlite:///{folder}/tunefarm.db", secrets.token_urlsafe()
    program = Program(
        (sys.executable, "-P", "-m", "server"), _environment(url, folder, ports, token), folder / "server.log"
    )
    database = Database(url)
    http, fleet = f"http://{HOST}:{ports[0]}", f"{HOST}:{ports[1]}"
    service = Service(program, database, http, fleet, token, TOKEN_PREFIX + "r" * 43)
    try:
        database.migrate()
        service.fill()
        program.start()
        _wait_until_ready(service)
        yield service
    finally:
        program.stop()
        database.close()


def _environment(url: str, folder: Path, ports: tuple[int, int], token: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "TUNEFARM_DATABASE_URL": url,
        "TUNEFARM_BROKER": str(folder / "broker"),
        "TUNEFARM_PORT": str(ports[0]),
        "TUNEFARM_GRPC_PORT": str(ports[1]),
        "TUNEFARM_TOKEN": token,
        "TUNEFARM_RATE_LIMIT": "off",
        "TUNEFARM_FAILURE_LIMIT": "off",
    }


def _wait_until_ready(service: Service) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not service.ended():
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{service.http}/readyz", trust_env=False, verify=False).is_success:
                return
        time.sleep(0.1)
    raise ServiceError(f"the server did not start: {service.program.output()[-500:]}")


def _job_id(number: int) -> str:
    return f"job-{number}"
