"""With many slow or simultaneous clients, workers still get answers, and each client is limited."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from core.tokens import Scope
from core.worker import WorkerState
from proto import fleet_pb2 as pb
from records.jobs import events
from records.storage import blobs
from server.api import models, schedules, uploads

from .conftest import Service, Start, Worker, onnx_model, wait_until

# More than there are threads of any kind.
MANY = 12


class Stuck:
    """Blocks callers of a function, like a slow disk, until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self._real = getattr(module, name)
        self._released = threading.Event()
        self.reached = threading.Event()
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args: Any) -> Any:
        self.reached.set()
        assert self._released.wait(30)
        return self._real(*args)

    def release(self) -> None:
        self._released.set()


def upload(service: Service) -> bool:
    return service.http.post("/v1/models", content=onnx_model()).is_success


def delete_imported(service: Service) -> bool:
    return service.http.delete("/v1/schedules/imported").is_success


def watch(service: Service) -> bool:
    job_id = service.submit()
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        return next(answer.iter_lines()) != ""


def fetch(service: Service) -> bool:
    with service.database.begin() as session:
        sha = blobs.put(session, b"an artifact")
    (chunk,) = service.fleet.GetBlob(pb.BlobRequest(sha256=sha), timeout=30)
    return bool(chunk.data == b"an artifact")


# In SQLite, a transaction makes the others wait.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("client", "module", "name"),
    [
        (upload, models, "recognise"),
        (delete_imported, schedules, "device_class"),
        (watch, events, "ends"),
        (fetch, blobs, "chunk"),
    ],
)
def test_workers_are_answered_while_every_thread_for_others_is_stuck(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    client: Callable[[Service], bool],
    module: Any,
    name: str,
) -> None:
    worker = Worker(service.fleet)
    worker.call()
    stuck = Stuck(monkeypatch, module, name)
    with ThreadPoolExecutor(MANY) as pool:
        clients = [pool.submit(client, service) for _ in range(MANY)]
        assert stuck.reached.wait(10)
        for state in (WorkerState.PROBING, WorkerState.READY) * 10:
            assert not worker.call(state).fenced
        assert not any(one.done() for one in clients)
        stuck.release()
        assert all(one.result(30) for one in clients)


@contextmanager
def half_an_upload(service: Service, token: str = "none") -> Iterator[socket.socket]:
    """Announce an upload, wait until the server receives it, and send half of it."""
    port = httpx.URL(service.url).port
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as client:
        head = f"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        client.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 100")
        client.sendall(b"\x3a" * 1000)
        yield client


def answer_to_another_upload(service: Service, token: str = "none") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return service.http.post("/v1/models", content=onnx_model(), headers=headers)


def check_refusal(answer: httpx.Response, status: int, says: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    assert says in answer.json()["detail"]


def test_workers_are_answered_while_many_uploads_and_streams_are_open(start: Start) -> None:
    service = start(max_uploads=50)
    job_id = service.submit()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(half_an_upload(service))
        path = f"/v1/jobs/{job_id}/events"
        streams = [stack.enter_context(service.http.stream("GET", path)).iter_lines() for _ in range(50)]
        assert answer_to_another_upload(service).status_code == 503
        worker = Worker(service.fleet)
        for _ in range(20):
            assert not worker.call().fenced
        with service.database.begin() as session:
            events.append(session, job_id, "note", {}, 1.0)
        assert all("event: note" in lines for lines in streams)


def test_uploads_beyond_the_limit_are_refused_and_may_be_repeated(start: Start) -> None:
    service = start(max_uploads=2)
    with half_an_upload(service), half_an_upload(service):
        check_refusal(answer_to_another_upload(service), 503, "takes 2 uploads at a time")
        check_refusal(service.http.post("/v1/schedules/import", content=b"{}"), 503, "takes 2 uploads")
    wait_until(lambda: answer_to_another_upload(service).is_success)


def test_a_client_leaves_uploads_to_others(start: Start) -> None:
    service = start(token="s3cret", max_uploads=4)
    body = {"name": "ci", "scopes": [Scope.SUBMIT]}
    made = service.http.post("/v1/tokens", json=body, headers={"Authorization": "Bearer s3cret"})
    token = made.json()["token"]
    with half_an_upload(service, token), half_an_upload(service, token):
        check_refusal(answer_to_another_upload(service, token), 429, "A client may have 2 uploads open")
        assert answer_to_another_upload(service, "s3cret").is_success


def test_event_streams_beyond_the_limit_are_refused_and_may_be_repeated(start: Start) -> None:
    service = start(max_event_streams=2)
    path = f"/v1/jobs/{service.submit()}/events"
    with service.http.stream("GET", path), service.http.stream("GET", path):
        check_refusal(service.http.get(path), 503, "takes 2 event streams at a time")

    def is_open() -> bool:
        with service.http.stream("GET", path) as answer:
            return answer.is_success

    wait_until(is_open)


def test_a_stalled_upload_is_ended(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "STALL_S", 0.1)
    with half_an_upload(service) as client:
        client.settimeout(10)
        with HTTPResponse(client) as answer:
            answer.begin()
            assert answer.status == 408
            # Of the length that its header says: the connection stays open for some seconds.
            assert json.load(answer)["detail"].startswith("No part of the body came for 0.1 s")
