"""The server ends incomplete requests: heads, bodies, and workers' messages."""

from __future__ import annotations

import contextlib
import json
import select
import threading
import time
import tracemalloc
from typing import Any

import grpc
import pytest

from records.jobs import events
from server import http_protocol
from server.access import interceptor, middleware

from .conftest import Service, Start, Worker, onnx_model
from .raw_http import answer, connection

SOON_S = 0.3


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"GET",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ",
    ],
)
def test_incomplete_request_heads_time_out(
    service: Service, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", SOON_S)
    with connection(service) as client:
        client.sendall(sent)
        assert answer(client).startswith("HTTP/1.1 408 ")
    assert not http_protocol.half_sent


def test_an_incomplete_second_request_head_times_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection(service) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(http_protocol, "HEAD_S", SOON_S)
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert "HTTP/1.1 408 " in answer(client)


def test_a_head_without_end_is_not_kept(service: Service) -> None:
    with connection(service) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20 and not select.select([client], [], [], 0)[0]:
                sent += client.send(b"X-Header: %s\r\n" % (b"y" * 1000))
        assert sent < 32 << 20, "what the sockets' buffers hold"


CHUNKED = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("target", [b"POST /healthz", b"POST /v1/jobs"])  # answered early, and read
@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"0\r\n", b"a: b\r\n" * 10_000),
        (b"0\r\nx: ", b"a" * 50_000),
        (b"5;x=", b"a" * 50_000),
        (b"0\r\n", b"a" * 50_000),
    ],
    ids=["trailers", "a long trailer", "an extension", "a long name"],
)
def test_endless_framing_of_a_body_is_not_kept(
    service: Service, target: bytes, begin: bytes, more: bytes
) -> None:
    tracemalloc.start()
    try:
        with connection(service) as client:
            client.sendall(target + b" HTTP/1.1\r\n" + CHUNKED + begin)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 32 << 20:
                    sent += client.send(more)
        assert sent < 16 << 20, "what the sockets' buffers hold"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_trailers_are_no_headers(service: Service, worker: Worker) -> None:
    worker.call()
    query = {"workloads": ["abc"]}
    etag = service.http.post("/v1/schedules:query", json=query).headers["etag"].encode()
    body = json.dumps(query).encode()
    with connection(service) as client:
        head = b"POST /v1/schedules:query HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
        client.sendall(head + CHUNKED)
        client.sendall(b"%x\r\n%s\r\n0\r\nIf-None-Match: %s\r\n\r\n" % (len(body), body, etag))
        assert answer(client).startswith("HTTP/1.1 200 ")


def test_the_rest_of_an_answered_body_times_out(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 3 * SOON_S)
    with connection(service) as client:
        client.sendall(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 405 ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 1000:
                sent += client.send(b"a")
                time.sleep(SOON_S / 10)
        assert sent < 1000
    assert not http_protocol.half_sent


def test_a_connection_is_reused_after_the_rest_of_a_body(service: Service) -> None:
    with connection(service) as client:
        client.sendall(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na")
        assert client.recv(65536).startswith(b"HTTP/1.1 405 ")
        client.sendall(b"bcGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_the_oldest_of_too_many_half_sent_requests_makes_room(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_HALF_SENT", 5)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connection(service)) for _ in range(8)]
        for client in clients[:2]:
            assert answer(client).startswith("HTTP/1.1 503 ")
        assert service.http.get("/healthz").is_success


def test_complete_requests_are_answered_for_any_segmentation(service: Service) -> None:
    body = onnx_model()
    head = f"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with connection(service) as client:
        for size in (1, 7, 4096):
            request = head + body
            for start in range(0, len(request), size):
                client.sendall(request[start : start + size])
            received = b""
            while not received.endswith(b"}"):
                part = client.recv(65536)
                assert part, "the connection ended"
                received += part
            assert received.startswith(b"HTTP/1.1 201")
        client.sendall((head + body) * 3)  # sent ahead
        received = b""
        while received.count(b"HTTP/1.1 201") < 3:
            part = client.recv(65536)
            assert part, "the connection ended"
            received += part


def test_incomplete_request_bodies_time_out(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_S", SOON_S)
    for path in ("/v1/jobs", "/v1/schedules:query"):
        with connection(service) as client:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f'{head}Content-Length: 100\r\nConnection: close\r\n\r\n{{"model":'.encode())
            assert answer(client).startswith("HTTP/1.1 408 ")


def test_a_stream_of_events_outlives_the_time_for_bodies(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "BODY_S", SOON_S)
    monkeypatch.setattr(http_protocol, "HEAD_S", SOON_S)
    job_id = service.submit()
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        lines = stream.iter_lines()
        assert any("state" in next(lines) for _ in range(3))
        time.sleep(3 * SOON_S)
        with service.database.begin() as session:
            events.append(session, job_id, "note", {}, 1.0)
        assert any("note" in line for line in lines)


def test_incomplete_worker_messages_time_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "MESSAGE_S", SOON_S)
    service = start()
    with grpc.insecure_channel(f"127.0.0.1:{service.context.settings.grpc_port}") as channel:
        call: Any = channel.stream_unary("/tunefarm.v1.Fleet/PutLibrary")
        over = threading.Event()
        silent = iter(lambda: over.wait(30), over)
        with pytest.raises(grpc.RpcError) as refused:
            call(silent, timeout=30)
        over.set()
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "took longer" in (refused.value.details() or "")
