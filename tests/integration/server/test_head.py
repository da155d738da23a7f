"""HEAD answers as GET does, without the body, at every address that GET has."""

from __future__ import annotations

import re

import pytest
from sqlalchemy.orm import Session

from records.storage import blobs

from .artifacts import artifact, publish
from .conftest import Service, Worker

# Their answers hold times, or count these requests.
CHANGING = ("/metrics", "/v1/workers")


def addresses(service: Service, job_id: str) -> list[str]:
    """Return every address with GET, with values for its parameters."""
    document = service.http.get("/openapi.json").json()
    given = {"job_id": job_id, "worker_id": "board"}

    def address(path: str) -> str:
        return re.sub(r"{(\w+)(:path)?}", lambda match: given.get(match[1], "none"), path)

    documented = [address(path) for path, methods in document["paths"].items() if "get" in methods]
    queries = [
        f"/v1/artifacts/best?model={service.upload()}",
        f"/v1/artifacts/best?model={service.upload()}&bundle=1",
        f"/v1/jobs/{job_id}/artifact?bundle=1",
        "/v1/schedules/best?workload=w",
    ]
    others = ["/", "/assets/app.js", "/assets/none.js", "/install", "/openapi.json", "/nothing"]
    return [*documented, *queries, *others]


def test_head_has_the_status_and_headers_of_get(service: Service, worker: Worker) -> None:
    worker.call()
    job_id = publish(service, worker, artifact(), 1e-3)
    found = addresses(service, job_id)
    assert f"/v1/jobs/{job_id}/events" in found
    for address in found:
        head = service.http.head(address)
        with service.http.stream("GET", address) as get:
            left_out = {"date", "transfer-encoding", "content-length" if address in CHANGING else ""}
            expected = {name: value for name, value in get.headers.items() if name not in left_out}
        actual = {name: value for name, value in head.headers.items() if name not in left_out}
        assert (head.status_code, actual) == (get.status_code, expected), address
        assert head.content == b""


def test_a_head_request_reads_little_of_a_large_artifact(
    service: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.call()
    job_id = publish(service, worker, bytes(10 * blobs.CHUNK_BYTES), 1e-3)
    read, chunk = [], blobs.chunk

    def counted(session: Session, sha: str, position: int) -> bytes:
        read.append(position)
        return chunk(session, sha, position)

    monkeypatch.setattr(blobs, "chunk", counted)
    head = service.http.head(f"/v1/jobs/{job_id}/artifact")
    assert head.headers["content-length"] == str(10 * blobs.CHUNK_BYTES)
    assert len(read) < 5
    monkeypatch.undo()
    requests = service.http.get("/metrics").text
    assert 'method="HEAD",route="/v1/jobs/{job_id}/artifact",status="200"' in requests


def test_head_of_the_events_of_a_running_job_ends(service: Service) -> None:
    job_id = service.submit()
    head = service.http.head(f"/v1/jobs/{job_id}/events")
    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
