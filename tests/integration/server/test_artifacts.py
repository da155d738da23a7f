"""Look-ups of a model's best artifact."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.job import TF32
from records.jobs import tasks
from records.jobs.tasks import TaskSpec
from tunefarm.client import Client

from .artifacts import artifact, publish, repr_digest
from .conftest import Service, Worker


def test_the_best_artifact_is_the_last_published(service: Service, worker: Worker) -> None:
    worker.call()
    model = service.upload()
    asked = {"model": model, "target": worker.device.name}
    nothing = service.http.get("/v1/artifacts/best", params=asked)
    assert (nothing.status_code, nothing.json()["type"]) == (404, "urn:tunefarm:problem:no-artifact")
    publish(service, worker, b"slower", 2e-3)
    job_id = publish(service, worker, b"faster", 1e-3)
    answer = service.http.get("/v1/artifacts/best", params=asked)
    assert (answer.content, answer.headers["content-type"]) == (b"faster", "application/x-tar")
    assert answer.headers["repr-digest"] == repr_digest(b"faster")
    told = {name: answer.headers[f"tunefarm-{name}"] for name in ("job", "device-class", "latency-s")}
    assert told == {"job": job_id, "device-class": worker.device.key, "latency-s": "0.001"}
    tag = answer.headers["etag"]
    again = service.http.get("/v1/artifacts/best", params=asked, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    publish(service, worker, b"fastest", 5e-4)
    assert service.http.get("/v1/artifacts/best", params=asked, headers={"If-None-Match": tag}).is_success


def test_artifacts_of_several_shapes_need_a_shape(service: Service, worker: Worker) -> None:
    worker.call()
    for batch in (1, 8):
        publish(service, worker, b"of %d" % batch, 1e-3, shapes={"x": [batch, 3]})
    asked: dict[str, Any] = {"model": service.upload()}
    unclear = service.http.get("/v1/artifacts/best", params=asked)
    assert (unclear.status_code, unclear.json()["title"]) == (409, "Shapes needed")
    assert "x=1,3; x=8,3" in unclear.json()["detail"]
    named = {"shape=x=1,3": b"of 1", "shape=x=8,3": b"of 8"}
    for query, content in named.items():
        shape = query.partition("=")[2]
        assert service.http.get("/v1/artifacts/best", params=asked | {"shape": shape}).content == content
    for shape, status in (("x=2,3", 404), ("x", 422), ("x=1,b", 422)):
        assert service.http.get("/v1/artifacts/best", params=asked | {"shape": shape}).status_code == status


def test_the_shape_of_a_static_input_is_found(service: Service, worker: Worker) -> None:
    worker.call()
    publish(service, worker, artifact(), 1e-3)
    asked: dict[str, Any] = {"model": service.upload()}

    def answer(*shapes: str) -> httpx.Response:
        return service.http.get("/v1/artifacts/best", params=asked | {"shape": list(shapes)})

    assert answer("x=2,3").content == artifact()
    refused = {shapes: answer(*shapes) for shapes in (("x=1,3",), ("y=2,3",), ("x=2,3", "y=2,3"))}
    for shapes, one in refused.items():
        assert (one.status_code, one.json()["type"]) == (404, "urn:tunefarm:problem:no-artifact")
        assert one.json()["detail"] == (
            f"No compiled model of this model and device has {' '.join(shapes)}. There are: x=2,3. "
            "Ask for one of these, or start a job."
        )
    publish(service, worker, artifact(), 1e-3, shapes={"n": [5]})
    assert answer("x=2,3").content == artifact()
    unclear = service.http.get("/v1/artifacts/best", params=asked)
    assert (unclear.status_code, "n=5; x=2,3" in unclear.json()["detail"]) == (409, True)


def test_tf32_artifacts_need_tf32_in_the_request(service: Service, worker: Worker) -> None:
    worker.call()
    publish(service, worker, b"in float32", 2e-3)
    job_id = publish(service, worker, b"in TF32", 1e-3, tf32=True)
    rounded = TaskSpec(job_id, "w", "matmul", 1, 1.0, True, "", (), variant=TF32, variant_of="another")
    with service.database.begin() as session:
        tasks.put_workload(session, "w", "{}")
        tasks.add_tasks(session, job_id, [rounded])
    asked: dict[str, Any] = {"model": service.upload()}
    assert service.http.get("/v1/artifacts/best", params=asked).content == b"in float32"
    assert service.http.get("/v1/artifacts/best", params=asked | {"tf32": True}).content == b"in TF32"
    exact = service.http.get("/v1/artifacts/best", params=asked | {"tf32": True, "exact": True})
    assert exact.status_code == 404


def test_an_exact_model_is_of_an_exact_job(service: Service, worker: Worker) -> None:
    worker.call()
    publish(service, worker, b"exact", 2e-3, exact=True)
    publish(service, worker, b"rounded", 1e-3)
    asked: dict[str, Any] = {"model": service.upload()}
    assert service.http.get("/v1/artifacts/best", params=asked).content == b"rounded"
    assert service.http.get("/v1/artifacts/best", params=asked | {"exact": True}).content == b"exact"


def test_a_client_downloads_only_a_better_artifact(service: Service, worker: Worker, tmp_path: Path) -> None:
    worker.call()
    into, target = tmp_path / "model.tar", worker.device.name
    publish(service, worker, b"slower", 2e-3)
    model = service.upload()
    with Client(service.url) as client:
        first = client.download_best(model, into, target)
        assert into.read_bytes() == b"slower"
        assert client.download_best(model, into, target, etag=first) is None
        publish(service, worker, b"faster", 1e-3)
        second = client.download_best(model, into, target, etag=first)
    assert second not in (None, first)
    assert into.read_bytes() == b"faster"


def unpacked(tar: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as opened:
        return {entry.name: opened.extractfile(entry).read() for entry in opened}  # type: ignore[union-attr]


@pytest.mark.parametrize("by", ["job", "model"])
def test_a_bundle_is_the_artifact_with_its_runtime(service: Service, worker: Worker, by: str) -> None:
    worker.call()
    data = artifact()
    job_id = publish(service, worker, data, 1e-3)
    path = f"/v1/jobs/{job_id}/artifact" if by == "job" else "/v1/artifacts/best"
    asked = {"bundle": "1"} if by == "job" else {"bundle": "1", "model": service.upload()}
    answer = service.http.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    files = unpacked(answer.content)
    assert unpacked(data).items() <= files.items()
    assert {
        "main.c",
        "tunefarm.h",
        "tunefarm.hpp",
        "CMakeLists.txt",
        "include/tvm/ffi/c_api.h",
    } <= files.keys()
    assert files["model.txt"] == b"threads 2\ninput x float32 2 3\noutput x float32 2 3\n"
    assert files["lib/libtvm_runtime.so"].startswith(b"\x7fELF")
    assert answer.headers["repr-digest"] == repr_digest(answer.content)
    again = service.http.get(path, params=asked, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    # The artifact itself is another representation.
    tag = {"If-None-Match": answer.headers["etag"]}
    assert service.http.get(path, params=asked | {"bundle": "0"}, headers=tag).content == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (artifact(kind="cuda"), "compiled for a GPU"),
        (artifact("riscv64"), "the runtime libraries for riscv64 are missing"),
        (b"no tar file at all", "can't be bundled"),
        (b"", "deleted while it was read"),
    ],
    ids=["gpu", "machine", "damaged", "empty"],
)
def test_an_artifact_without_a_bundle_is_refused(
    service: Service, worker: Worker, data: bytes, why: str
) -> None:
    worker.call()
    job_id = publish(service, worker, data, 1e-3)
    answer = service.http.get(f"/v1/jobs/{job_id}/artifact", params={"bundle": "1"})
    assert answer.status_code in (404, 409)
    assert why in answer.json()["detail"]
