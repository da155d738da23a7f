"""Invalid input of every kind gets a problem document, stores nothing and doesn't harm the service."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import httpx
import pytest

from proto import fleet_pb2 as pb
from records.storage.database import StorageError

from .conftest import Service, Start, launch, onnx_model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One server for all tests: each also shows that the requests before did no harm."""
    service, stop = launch(tmp_path_factory.mktemp("service"))
    yield service
    stop()


def problem(answer: httpx.Response, status: int) -> dict[str, object]:
    """Return the problem document of an answer that must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = answer.json()
    assert body["status"] == status
    assert all(isinstance(body[field], str) and body[field] for field in ("type", "title", "detail"))
    return body


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trials": 0}, "trials must be at least 1 and at most 10000000, not 0"),
        ({"trials": -5}, "not -5"),
        ({"trials": 10**30}, "trials"),
        ({"trials": "many"}, "trials: input should be a valid integer"),
        ({"trials": 1.5}, "trials"),
        ({"trials": True}, "trials"),
        ({"trials": None}, "trials"),
        ({"minutes": 0}, "minutes must be more than 0 and at most 527040, not 0"),
        ({"minutes": -1}, "not -1"),
        ({"minutes": 1e300}, "minutes"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"target": "toaster"}, "No device class is named 'toaster'"),
        ({"target": ""}, "target"),
        ({"target": "a\0b"}, "can't be printed"),
        ({"model": "abc"}, "model"),
        ({"model": "0" * 64}, "No model is stored as 0000"),
        ({"shapes": {"x": [0]}}, "shape of x"),
        ({"shapes": {"x": [1] * 17}}, "shape of x"),
        ({"shapes": {"x": [2**40]}}, "shape of x"),
        ({"shapes": {"x": "1,3"}}, "shapes.x"),
        ({"shapes": [1]}, "shapes"),
        ({"shapes": {f"x{i}": [1] for i in range(300)}}, "300 inputs"),
        ({"trails": 5}, "trails"),
    ],
)
def test_an_invalid_job_is_refused(service: Service, changes: dict[str, object], says: str) -> None:
    body = {"model": service.upload(), "trials": 10} | changes
    detail = problem(service.http.post("/v1/jobs", json=body), 422)["detail"]
    assert says in str(detail)
    assert service.http.get("/v1/jobs").json()["items"] == []
    assert service.wakes == []


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b"\xff\xfe", 422),
        (b"[" * 100_000, 400),
        (b'{"trials": NaN, "minutes": Infinity}', 422),
        (b'{"model": "\\ud800", "trials": 1}', 422),
        (b'{"trials": ' + b"9" * 5000 + b"}", 400),
    ],
)
def test_an_invalid_body_is_refused(service: Service, content: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    problem(service.http.post("/v1/jobs", content=content, headers=headers), status)
    assert service.http.get("/readyz").is_success


def test_nan_minutes_are_refused(service: Service) -> None:
    body = json.dumps({"model": service.upload(), "trials": 1, "minutes": float("nan")})
    answer = service.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert "minutes must be" in str(problem(answer, 422)["detail"])


@pytest.mark.parametrize("key", ["", "k" * 300])
def test_an_invalid_idempotency_key_is_refused(service: Service, key: str) -> None:
    body = {"model": service.upload(), "trials": 1}
    problem(service.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key}), 422)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/jobs/x/y/z", 404),
        ("DELETE", "/v1/jobs", 405),
        ("DELETE", "/v1/jobs/nope", 404),
        ("GET", "/v1/models", 405),
        ("PUT", "/healthz", 405),
        ("GET", "/v1/jobs?limit=0", 422),
        ("GET", "/v1/jobs?limit=many", 422),
        ("GET", "/v1/jobs?before=nope", 422),
        ("POST", "/v1/jobs/nope:cancel", 404),
        ("POST", "/v1/models?name=%00", 422),
        ("POST", "/v1/models?name=" + "n" * 300, 422),
        ("GET", "/v1/schedules/best", 422),
        ("GET", "/v1/schedules/best?workload=a%20b", 422),
        ("GET", "/v1/schedules/export?target=toaster", 422),
        ("GET", "/v1/schedules/export?job=nope", 404),
        ("GET", "/v1/schedules/export?job=nope&target=native", 422),
    ],
)
def test_an_invalid_address_is_refused(service: Service, method: str, path: str, status: int) -> None:
    problem(service.http.request(method, path), status)


@pytest.mark.parametrize("content", [b"", b"hello", onnx_model()[:-3], b"\x00" * 1000])
def test_a_body_that_is_no_model_is_not_stored(service: Service, content: bytes) -> None:
    problem(service.http.post("/v1/models", content=content), 422)


def test_a_form_is_not_a_model(service: Service) -> None:
    problem(service.http.post("/v1/models", files={"file": onnx_model()}), 415)


def test_an_upload_over_the_limit_is_refused_announced_or_not(start: Start) -> None:
    service = start(max_upload_bytes=10_000)

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"\x3a" * 1000

    for content in (b"\x3a" * 20_000, chunks()):
        answer = service.http.post("/v1/models", content=content)
        assert "10000 bytes" in str(problem(answer, 413)["detail"])
    service.upload()


def test_other_bodies_are_limited_as_well(service: Service) -> None:
    problem(service.http.post("/v1/jobs", content=b" " * (5 << 20)), 413)


@pytest.mark.parametrize("length", ["-1", "abc", "9" * 400])
def test_an_invalid_content_length_does_no_harm(service: Service, length: str) -> None:
    host, port = service.http.base_url.host, service.http.base_url.port
    with socket.create_connection((host, port or 0), timeout=5) as raw:
        raw.sendall(f"POST /v1/models HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n".encode())
        assert raw.recv(100).split()[1] in (b"400", b"413")
    assert service.http.get("/readyz").is_success


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with a token and without a limit on wrong ones."""
    service, stop = launch(tmp_path_factory.mktemp("guarded"), token="s3cret", failure_limit="off")
    yield service
    stop()


@pytest.mark.parametrize("path", ["/v1/jobs", "/metrics", "/openapi.json", "/nothing", "/v1/jobs/x/events"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer \u00e9"])
def test_the_token_is_needed(guarded: Service, path: str, given: str | None) -> None:
    headers = {} if given is None else {b"Authorization": given.encode()}
    answer = guarded.http.get(path, headers=headers)
    assert problem(answer, 401)["type"] == "urn:tunefarm:problem:token-needed"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_token_opens_everything(guarded: Service) -> None:
    assert guarded.http.get("/v1/jobs", headers={"Authorization": "Bearer s3cret"}).is_success


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(guarded: Service, path: str) -> None:
    assert guarded.http.get(path).is_success


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_workers_need_the_token(guarded: Service, metadata: tuple[tuple[str, str], ...]) -> None:
    calls = (
        lambda: guarded.fleet.Synchronize(pb.SynchronizeRequest(), metadata=metadata, timeout=5),
        lambda: guarded.fleet.GetWorkload(pb.WorkloadRequest(), metadata=metadata, timeout=5),
        lambda: list(guarded.fleet.GetBlob(pb.BlobRequest(), metadata=metadata, timeout=5)),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_worker_with_the_token_is_let_through(guarded: Service) -> None:
    right = (("authorization", "Bearer s3cret"),)
    with pytest.raises(grpc.RpcError) as refused:
        guarded.fleet.GetWorkload(pb.WorkloadRequest(workload_hash="none"), metadata=right, timeout=5)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StorageError("the database x failed: the disk is full", full=True), 507),
        (StorageError("another process keeps it locked"), 503),
        (OSError(28, "No space left on device"), 507),
        (RuntimeError("a bug"), 500),
    ],
)
def test_a_failing_storage_is_a_problem(
    service: Service, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    @contextmanager
    def failing() -> Iterator[None]:
        raise error
        yield

    with monkeypatch.context() as patched:
        patched.setattr(service.database, "begin", failing)
        for answer in (service.http.get("/v1/jobs"), service.http.post("/v1/models", content=onnx_model())):
            problem(answer, status)
    assert service.http.get("/readyz").is_success


def test_the_openapi_document_is_published(service: Service) -> None:
    document = service.http.get("/openapi.json").json()
    assert {"/v1/jobs", "/v1/jobs/{job_id}:cancel", "/v1/schedules:query"} <= set(document["paths"])
    assert "ProblemBody" in document["components"]["schemas"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_metrics_count_by_route(start: Start) -> None:
    service = start()
    service.submit()
    service.http.get("/nothing/at/all")
    text = service.http.get("/metrics").text
    assert 'tunefarm_http_requests_total{method="POST",route="/v1/jobs",status="202"} 1.0' in text
    assert 'tunefarm_jobs{state="queued"} 1.0' in text
    assert "/nothing" not in text
