"""TLS and mutual TLS over real connections: HTTP, gRPC, the client and the worker."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import httpx
import pytest
import trustme

from proto import fleet_pb2 as pb
from proto.fleet_pb2_grpc import FleetStub
from server import http_protocol, main
from system.tls import TlsFiles
from tunefarm.client.client import Client, UnreachableError
from worker.agent.service import FleetClient, NotStored, open_channel

from .conftest import Service, channel_to, launch, wait_until

ROOT = Path(__file__).parents[3]
TOKEN = "a token for TLS"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for a server and for clients, from our authority and from another."""
    folder = tmp_path_factory.mktemp("certificates")
    for owner in ("ours", "theirs"):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / f"{owner}.ca")
        for role, name in (("server", "127.0.0.1"), ("client", "127.0.0.1"), ("elsewhere", "elsewhere.test")):
            made = authority.issue_cert(name)
            made.cert_chain_pems[0].write_to_path(folder / f"{owner}-{role}.pem")
            made.private_key_pem.write_to_path(folder / f"{owner}-{role}.key")
    return folder


def client_files(folder: Path, cert_of: str | None = None, ca_of: str = "ours") -> TlsFiles:
    if cert_of is None:
        return TlsFiles(ca=folder / f"{ca_of}.ca")
    return TlsFiles(
        folder / f"{cert_of}-client.pem", folder / f"{cert_of}-client.key", folder / f"{ca_of}.ca"
    )


@pytest.fixture(scope="module")
def tls(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    pair = {"tls_cert": folder / "ours-server.pem", "tls_key": folder / "ours-server.key"}
    where = tmp_path_factory.mktemp("tls")
    service, stop = launch(where, client_files(folder), token=TOKEN, failure_limit="off", **pair)
    yield service
    stop()


@pytest.fixture(scope="module")
def mutual(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server that demands a certificate of our authority."""
    pair = {"tls_cert": folder / "ours-server.pem", "tls_key": folder / "ours-server.key"}
    where, own = tmp_path_factory.mktemp("mutual"), client_files(folder, "ours")
    service, stop = launch(where, own, token=TOKEN, tls_client_ca=folder / "ours.ca", **pair)
    yield service
    stop()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x3f\xff" + bytes(5000)])
def test_incomplete_tls_handshakes_time_out(
    folder: Path, tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "HEAD_S", 0.3)
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    pair = {"tls_cert": folder / "ours-server.pem", "tls_key": folder / "ours-server.key"}
    service, stop = launch(tmp_path, client_files(folder), token=TOKEN, **pair)
    try:
        for port in (httpx.URL(service.url).port, service.context.settings.grpc_port):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall(sent)
                with suppress(ConnectionResetError):
                    while client.recv(65536):
                        pass
        assert service.http.get("/healthz").status_code == 200
    finally:
        stop()


def test_the_oldest_of_too_many_handshakes_makes_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_HALF_SENT", 5)
    pair = {"tls_cert": folder / "ours-server.pem", "tls_key": folder / "ours-server.key"}
    service, stop = launch(tmp_path, client_files(folder), token=TOKEN, **pair)
    try:
        with ExitStack() as stack:
            address = ("127.0.0.1", httpx.URL(service.url).port)
            clients = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(8)]
            for client in clients[:2]:
                with suppress(ConnectionResetError):
                    assert client.recv(65536) == b""
            assert service.http.get("/healthz").status_code == 200
            assert len(http_protocol.half_sent) <= 5
    finally:
        stop()


def test_a_request_that_follows_its_handshake_at_once_is_answered(tls: Service, folder: Path) -> None:
    context = ssl.create_default_context(cafile=folder / "ours.ca")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", httpx.URL(tls.url).port), timeout=30) as connection:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        client.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.sendall(outgoing.read())  # the last part of the handshake, and the request
        received = b""
        while b"\r\n\r\n" not in received:
            part = connection.recv(65536)
            assert part, "the connection ended"
            incoming.write(part)
            with suppress(ssl.SSLWantReadError):
                received += client.read(65536)
    assert received.startswith(b"HTTP/1.1 200")


def workload_code(port: int, trust: TlsFiles | None, token: str = TOKEN) -> grpc.StatusCode:
    """Ask for a workload that doesn't exist; return the status."""
    metadata = (("authorization", f"Bearer {token}"),)
    with channel_to(port, trust) as channel, pytest.raises(grpc.RpcError) as refused:
        FleetStub(channel).GetWorkload(pb.WorkloadRequest(workload_hash="x"), metadata=metadata, timeout=10)
    code: grpc.StatusCode = refused.value.code()
    return code


def test_the_client_trusts_a_server_of_its_authority(tls: Service, folder: Path) -> None:
    with Client(tls.url, TOKEN, tls=client_files(folder)) as client:
        assert list(client.jobs()) == []


@pytest.mark.parametrize("stranger", [None, "theirs"])
def test_the_client_trusts_no_other_server(tls: Service, folder: Path, stranger: str | None) -> None:
    files = None if stranger is None else client_files(folder, ca_of=stranger)
    with (
        Client(tls.url, TOKEN, tls=files, sleep=lambda _: None) as client,
        pytest.raises(UnreachableError, match="certificate verify failed"),
    ):
        list(client.jobs())


def test_a_tls_server_does_not_answer_in_clear(tls: Service) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(tls.url.replace("https", "http") + "/healthz", trust_env=False)
    assert workload_code(tls.context.settings.grpc_port, None) is grpc.StatusCode.UNAVAILABLE


def test_workers_speak_tls_and_still_need_a_token(tls: Service, folder: Path) -> None:
    port = tls.context.settings.grpc_port
    assert workload_code(port, client_files(folder)) is grpc.StatusCode.NOT_FOUND
    assert workload_code(port, client_files(folder), "wrong") is grpc.StatusCode.UNAUTHENTICATED
    assert workload_code(port, client_files(folder, ca_of="theirs")) is grpc.StatusCode.UNAVAILABLE
    assert tls.http.get("/v1/jobs").status_code == 401


def test_the_workers_own_client_gets_through(tls: Service, folder: Path) -> None:
    address = f"127.0.0.1:{tls.context.settings.grpc_port}"

    async def ask() -> None:
        async with open_channel(address, 1.0, client_files(folder)) as channel:
            await FleetClient(channel, address, TOKEN, 1.0).workload("x")

    with pytest.raises(NotStored, match="no workload 'x'"):
        asyncio.run(ask())


@pytest.fixture
def speaks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log a failed connection at once."""
    monkeypatch.setattr("worker.agent.service.START_GRACE_S", 0.0)


@pytest.mark.parametrize(
    ("ca_of", "says"),
    [(None, "give --tls if the service uses TLS"), ("theirs", "give the service's authority with --ca")],
)
@pytest.mark.usefixtures("speaks_at_once")
def test_a_worker_without_a_connection_suggests_missing_flags(
    tls: Service, folder: Path, caplog: pytest.LogCaptureFixture, ca_of: str | None, says: str
) -> None:
    files = None if ca_of is None else client_files(folder, ca_of=ca_of)
    _call_until_logged(tls.context.settings.grpc_port, files, caplog, says)


@pytest.mark.usefixtures("speaks_at_once")
def test_a_worker_says_that_a_certificate_is_for_another_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, chain = ((folder / f"ours-elsewhere.{kind}").read_bytes() for kind in ("key", "pem"))
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    server.start()
    try:
        _call_until_logged(
            port, client_files(folder), caplog, "its certificate doesn't name the host in --server"
        )
    finally:
        server.stop(None)


def _call_until_logged(
    port: int, files: TlsFiles | None, caplog: pytest.LogCaptureFixture, says: str
) -> None:
    """Call the service until the worker's log has these words."""
    address = f"127.0.0.1:{port}"

    async def ask() -> None:
        async with open_channel(address, 0.5, files) as channel:
            asking = asyncio.create_task(FleetClient(channel, address, TOKEN, 0.5).workload("x"))
            async with asyncio.timeout(20):
                while says not in caplog.text:
                    await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(ask())


@pytest.mark.parametrize("shown", [None, "theirs"])
def test_mutual_tls_refuses_clients_without_our_certificate(
    mutual: Service, folder: Path, shown: str | None
) -> None:
    files = client_files(folder, shown)
    with (
        Client(mutual.url, TOKEN, tls=files, sleep=lambda _: None) as client,
        pytest.raises(UnreachableError),
    ):
        list(client.jobs())
    assert workload_code(mutual.context.settings.grpc_port, files) is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls_lets_our_certificates_in_but_not_without_a_token(mutual: Service, folder: Path) -> None:
    with Client(mutual.url, TOKEN, tls=client_files(folder, "ours")) as client:
        assert list(client.jobs()) == []
    assert mutual.http.get("/v1/jobs").status_code == 401
    code = workload_code(mutual.context.settings.grpc_port, client_files(folder, "ours"))
    assert code is grpc.StatusCode.NOT_FOUND


@pytest.mark.slow
def test_a_worker_attaches_over_mutual_tls(mutual: Service, folder: Path, tmp_path: Path) -> None:
    server = f"127.0.0.1:{mutual.context.settings.grpc_port}"
    own = client_files(folder, "ours")
    flags = ("--server", server, "--name", "secured", "--ca", own.ca, "--cert", own.cert, "--key", own.key)
    command = [sys.executable, "-P", "-m", "worker", *map(str, flags)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
    environment = kept | {"PYTHONPATH": str(ROOT), "TUNEFARM_WORKER_TOKEN": TOKEN}
    said = tmp_path / "worker.log"
    with said.open("w") as log, subprocess.Popen(command, env=environment, stderr=log) as process:
        try:
            # The service lists a worker before the worker has its answer: the worker's own words count.
            wait_until(lambda: "connected to the service as secured" in said.read_text(), 60)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            assert "secured" in mutual.http.get("/v1/workers", headers=headers).text
        finally:
            process.terminate()
            process.wait(60)
    assert TOKEN not in said.read_text()
