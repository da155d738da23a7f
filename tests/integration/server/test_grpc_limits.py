"""The gRPC server bounds the memory that strangers and builders can fill."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import grpc
import pytest

from core.worker import WorkerState
from proto import fleet_pb2 as pb
from proto.fleet_pb2_grpc import FleetStub

from .conftest import Service, Start, Worker, wait_until

LARGE = pb.Library(session_id="s", data=bytes(60 << 20))


class CountingProxy:
    """Forwards one connection to a port and counts the bytes on their way there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.forwarded = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            inner = self._listening.accept()[0]
        except OSError:  # closed before any connection
            return
        outer = socket.create_connection(("127.0.0.1", self._port))
        threading.Thread(target=self._pump, args=(outer, inner, False), daemon=True).start()
        self._pump(inner, outer, True)

    def _pump(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with closing(sink):
            try:
                while data := source.recv(1 << 16):
                    self.forwarded += len(data) if counts else 0
                    sink.sendall(data)
            except OSError:  # either end is gone
                return

    def close(self) -> None:
        self._listening.close()


@contextmanager
def proxied(service: Service) -> Iterator[tuple[FleetStub, CountingProxy]]:
    proxy = CountingProxy(service.context.settings.grpc_port)
    options = [("grpc.max_send_message_length", -1)]
    with closing(proxy), grpc.insecure_channel(f"127.0.0.1:{proxy.port}", options=options) as channel:
        yield FleetStub(channel), proxy


def code_of(call: object) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call()  # type: ignore[operator]
    code: grpc.StatusCode = error.value.code()
    return code


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_a_strangers_message_is_not_received(start: Start, metadata: tuple[tuple[str, str], ...]) -> None:
    service = start(token="s3cret")
    with proxied(service) as (fleet, proxy):
        code = code_of(lambda: fleet.PutLibrary(LARGE, metadata=metadata, timeout=20))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert proxy.forwarded < 16 << 20, "more than the buffers on the way hold"


def test_a_builders_message_is_received(start: Start) -> None:
    service = start(token="s3cret")
    with proxied(service) as (fleet, proxy):
        metadata = (("authorization", "Bearer s3cret"),)
        fleet.PutLibrary(LARGE, metadata=metadata, timeout=20)
        assert proxy.forwarded > 60 << 20


def test_a_call_without_a_message_is_refused(service: Service) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{service.context.settings.grpc_port}") as channel:
        call: Any = channel.stream_unary("/tunefarm.v1.Fleet/Synchronize")
        assert code_of(lambda: call(iter(()), timeout=5)) is grpc.StatusCode.INVALID_ARGUMENT


def test_connections_beyond_the_limit_are_closed_and_stop_no_worker(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.main.MAX_CONNECTIONS", 5)
    monkeypatch.setattr("server.main.HEAD_S", 2.0)
    service = start()
    worker = Worker(service.fleet)
    assert not worker.call(WorkerState.PROBING).fenced
    address = ("127.0.0.1", service.context.settings.grpc_port)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(8)]
        for client in clients[5:]:
            with suppress(ConnectionResetError):
                assert client.recv(65536) == b"", "it would say so to a connection that it keeps"
        assert not worker.call(WorkerState.PROBING).fenced
        for client in clients[:5]:  # they have sent nothing
            with suppress(ConnectionResetError):
                while client.recv(65536):
                    pass
    newcomer = grpc.insecure_channel(f"127.0.0.1:{service.context.settings.grpc_port}")
    with newcomer:
        assert not Worker(FleetStub(newcomer), id="newcomer").call(WorkerState.PROBING).fenced


def test_calls_beyond_the_limit_are_refused_and_may_be_repeated(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.main.MAX_CONCURRENT_CALLS", 2)
    service = start()
    waiting = [Worker(service.fleet, id=f"waits-{number}") for number in range(2)]
    threads = [threading.Thread(target=worker.call, kwargs={"wait_s": 2.0}) for worker in waiting]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(service.http.get("/v1/workers").json()["items"]) == 2)
    newcomer = Worker(service.fleet, id="newcomer")
    assert code_of(newcomer.call) is grpc.StatusCode.RESOURCE_EXHAUSTED
    for thread in threads:
        thread.join(10)
    assert not newcomer.call(WorkerState.PROBING).fenced
