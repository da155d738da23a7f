"""The composition of docker-compose.yml as plain processes, doubled: two servers, two schedulers and two
workers over one PostgreSQL and one Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.onnx_models import residual
from tests.processes import OWN_PROFILES
from tests.services import PASSWORD, Postgresql, Redis, free_port
from tunefarm.client.client import Client, ClientError
from tunefarm.client.values import JobRequest

ROOT = Path(__file__).parents[2]
TOKEN = "bootstrap-token-with-every-right"
TRIALS = 24
pytestmark = [pytest.mark.slow_lane(seconds=26), pytest.mark.timeout(600)]


@dataclass
class Composition:
    """Processes whose output goes to files in `folder`."""

    folder: Path
    settings: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: object, **settings: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNEFARM_")}
        ours = {"PYTHONPATH": str(ROOT), "TUNEFARM_TOKEN": TOKEN}
        with self._log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tunefarm", *map(str, command)],
                env={**kept, **OWN_PROFILES, **ours, **self.settings, **settings},
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def server(self, name: str) -> tuple[str, str]:
        """Return the addresses for clients and for workers."""
        port, grpc_port = free_port(), free_port()
        self.start(name, "server", TUNEFARM_PORT=str(port), TUNEFARM_GRPC_PORT=str(grpc_port))
        return f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"

    def log(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not true():
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended: {self.log(name)}"
            assert time.monotonic() < deadline, "\n".join(map(self.log, self.processes))
            time.sleep(0.1)

    def stop(self) -> dict[str, int]:
        """Stop all processes; return their exit codes."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        return {name: process.wait(60) for name, process in self.processes.items()}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@pytest.fixture
def composition(postgresql: Postgresql, redis_server: Redis, tmp_path: Path) -> Iterator[Composition]:
    postgresql.create("composition")
    settings = {
        "TUNEFARM_DATABASE_URL": postgresql.tcp_url("composition"),
        "TUNEFARM_BROKER": redis_server.url,
        "TUNEFARM_BATCH_SIZE": "4",
    }
    composition = Composition(tmp_path, settings)
    yield composition
    for process in composition.processes.values():
        process.kill()
        process.wait()


def is_up(client: Client) -> bool:
    try:
        return client.workers() is not None
    except ClientError:
        return False


def test_two_servers_and_schedulers_share_a_job(composition: Composition) -> None:
    addresses = [composition.server(f"server-{number}") for number in (1, 2)]
    with Client(addresses[0][0], TOKEN) as first, Client(addresses[1][0], TOKEN) as second:
        composition.until(lambda: is_up(first) and is_up(second))
        for number, (_, address) in enumerate(addresses, 1):
            composition.start(f"scheduler-{number}", "scheduler")
            worker = ("worker", "--server", address, "--name", f"worker-{number}", "--threads", 1)
            composition.start(f"worker-{number}", *worker, TUNEFARM_WORKER_SLOTS="2")
        composition.until(lambda: [worker.state for worker in second.workers()] == ["ready", "ready"])

        model = composition.folder / "tiny.onnx"
        model.write_bytes(residual())
        job = first.submit(JobRequest(first.upload(model).sha256, TRIALS))
        watch = [sys.executable, "-m", "tunefarm", "watch", job.id, "--server", addresses[1][0], "--json"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TUNEFARM_TOKEN": TOKEN}
        watching = subprocess.Popen(watch, env=environment, stdout=subprocess.PIPE, text=True)
        composition.until(lambda: watching.poll() is not None)
        out, _ = watching.communicate()

        finished = json.loads(out)
        assert finished["state"] == "done"
        # On a disturbed machine, the best schedules are measured again.
        assert sum(task.trials for task in first.tasks(job.id)) == finished["trials_done"] >= TRIALS
        assert all(worker.trials_done > 0 for worker in second.workers())
        second.download(job.id, composition.folder / "tuned.tar")
        assert (composition.folder / "tuned.tar").stat().st_size > 10_000
    assert set(composition.stop().values()) == {0}
    names = {composition.log(f"scheduler-{n}").partition("ready as ")[2].split()[0] for n in (1, 2)}
    assert len(names) == 2
    for name in composition.processes:
        assert "Traceback" not in composition.log(name)
        assert TOKEN not in composition.log(name)
        assert PASSWORD not in composition.log(name)
