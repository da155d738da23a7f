"""A real server: uvicorn and gRPC on free ports and a real database, without a scheduler."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import onnx
import pytest
import uvloop
from onnx import TensorProto, helper

from core.device import Device
from core.lease import LeaseId
from core.worker import Role, Vitals, WorkerState
from proto import convert
from proto import fleet_pb2 as pb
from proto.fleet_pb2_grpc import FleetStub
from proto.messages import Result, SyncResponse, WorkerReport
from records.storage.database import Database
from server.context import ServerContext
from server.main import serve
from server.settings import ServerSettings
from system.tls import TlsFiles
from tests.devices import DEVICE
from tests.marks import slow_lane_except
from tests.services import Emptied, free_port, renewed_sqlite, sqlite
from tunefarm.client.client import tls_context

# With characters that mean something in a cookie.
BOOTSTRAP = 'the "bootstrap"; token=%'


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def onnx_model(size: int = 4) -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    made: onnx.ModelProto = helper.make_model(graph)
    return made.SerializeToString()


@dataclass
class Service:
    """A running server with its clients and its database."""

    context: ServerContext
    url: str
    http: httpx.Client
    fleet: FleetStub
    wakes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.context.database

    def upload(self, data: bytes | None = None) -> str:
        response = self.http.post("/v1/models?name=relu", content=data or onnx_model())
        assert response.status_code == 201, response.text
        sha: str = response.json()["sha256"]
        return sha

    def submit(self, **changes: object) -> str:
        body = {"model": self.upload(), "trials": 10} | changes
        response = self.http.post("/v1/jobs", json=body)
        assert response.status_code == 202, response.text
        job_id: str = response.json()["id"]
        return job_id


@dataclass
class Worker:
    """A protocol client for workers, without a device."""

    fleet: FleetStub
    id: str = "board"
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    device: Device = DEVICE
    starting: bool = True
    builds_for: tuple[str, ...] = ()
    boot_id: str = ""
    hardware: tuple[str, ...] = ()
    token: str = ""

    def call(
        self,
        state: WorkerState = WorkerState.READY,
        *,
        held: LeaseId | None = None,
        results: tuple[Result, ...] = (),
        slots: int = 8,
        wait_s: float = 0.0,
        vitals: Vitals = Vitals(),  # noqa: B008 - it never changes
        calibrated: bool = False,
    ) -> SyncResponse:
        device = None if state is WorkerState.PROBING else self.device
        own = (self.id, self.session, self.starting, state, device)
        role = Role.BUILD if self.builds_for else Role.MEASURE
        about = vitals, role, self.builds_for, calibrated, self.boot_id
        report = WorkerReport(*own, held, results, slots, wait_s, *about, hardware=self.hardware)
        metadata = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        wire = convert.report_to_wire(report)
        response: pb.SynchronizeResponse = self.fleet.Synchronize(wire, timeout=40, metadata=metadata)
        self.starting = False
        return convert.response_from_wire(response, held)


Start = Callable[..., Service]


# Runs the tests of a module on both databases; the others use SQLite. tests/unit/records runs all queries on
# both, on every push.
on_both_databases = pytest.mark.parametrize(
    "database_url", slow_lane_except(["sqlite", "postgresql"], "sqlite", seconds=0.4), indirect=True
)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, memory: Path) -> str:
    if getattr(request, "param", "sqlite") == "postgresql":
        emptied: Emptied = request.getfixturevalue("emptied")
        emptied.empty()
        return emptied.url
    return renewed_sqlite(memory / "server.db")


@pytest.fixture
def start(tmp_path: Path, database_url: str) -> Iterator[Start]:
    """Start servers with special settings."""
    stops: list[Callable[[], None]] = []

    def start_one(**changes: Any) -> Service:
        service, stop = launch(tmp_path, database_url=database_url, **changes)
        stops.append(stop)
        return service

    yield start_one
    for stop in stops:
        stop()


@pytest.fixture
def service(start: Start) -> Service:
    return start()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with a bootstrap token and without limits."""
    unlimited: dict[str, Any] = {"rate_limit": "off", "failure_limit": "off"}
    service, stop = launch(tmp_path_factory.mktemp("guarded"), token=BOOTSTRAP, **unlimited)
    yield service
    stop()


@pytest.fixture
def worker(service: Service) -> Worker:
    return Worker(service.fleet)


def launch(
    folder: Path, trust: TlsFiles | None = None, **changes: object
) -> tuple[Service, Callable[[], None]]:
    """Start a server with its data in `folder`; return it and a function that stops it. `trust` means TLS."""
    listening = socket.create_server(("127.0.0.1", 0))
    usual = {
        "database_url": sqlite(folder / "tunefarm.db"),
        "broker": str(folder / "broker"),
        "grpc_port": free_port(),
    }
    settings = ServerSettings(**usual | changes)  # type: ignore[arg-type]
    database = Database(settings.database_url)
    wakes: list[tuple[str, str]] = []
    context = ServerContext(
        settings, database, lambda step, job: wakes.append((step, job)), time.time, lambda: uuid.uuid4().hex
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await serve(context, listening)

    thread = threading.Thread(target=lambda: uvloop.run(run()))  # as `tunefarm server` does
    thread.start()
    url = f"{'https' if trust else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
    # Without TLS, loading the certificate authorities would take 20 ms in vain.
    client = httpx.Client(base_url=url, trust_env=False, timeout=20, verify=tls_context(trust) or False)
    channel = channel_to(settings.grpc_port, trust)

    def stop() -> None:
        # Close the client first: a TLS server waits for it at shutdown.
        client.close()
        channel.close()
        loops[0].call_soon_threadsafe(context.stopping.set)
        thread.join(10)
        assert not thread.is_alive(), "the server didn't stop"
        database.close()
        listening.close()

    wait_until(lambda: client.get("/healthz").is_success)
    return Service(context, url, client, FleetStub(channel), wakes), stop


def channel_to(port: int, trust: TlsFiles | None = None) -> grpc.Channel:
    if trust is None:
        return grpc.insecure_channel(f"127.0.0.1:{port}")
    texts = trust.read()
    credentials = grpc.ssl_channel_credentials(texts.ca, texts.key, texts.cert)
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
