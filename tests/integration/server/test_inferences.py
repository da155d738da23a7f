"""Inference jobs over HTTP and gRPC: a device runs an artifact with a user's inputs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from core.inference import Comparison, OutputDifference
from core.job import JobState
from core.lease import LeaseId
from core.measurement import Measurement, Outcome
from core.worker import Vitals
from proto import fleet_pb2 as pb
from proto.convert import outputs_to_wire
from proto.messages import MAX_OUTPUTS_BYTES, OutputsUpload, Result
from records.fleet import module_runs
from records.fleet.leases import WITHOUT_INFERENCE
from records.jobs import inferences, jobs
from records.storage import blobs
from tests.devices import DEVICE
from tunefarm.client import Client

from .artifacts import artifact, publish
from .conftest import Service, Worker, on_both_databases
from .requests import leased

pytestmark = on_both_databases

ABLE = Vitals(infers=True)
# Larger than the answers that the service compresses.
OUTPUTS = bytes(range(256)) * 200


def dataset(service: Service, rows: int = 2) -> str:
    file = io.BytesIO()
    np.savez(file, x=np.ones((rows, 3), np.float32))
    sha: str = service.http.post("/v1/datasets", content=file.getvalue()).json()["sha256"]
    return sha


def running(service: Service, worker: Worker) -> tuple[str, int]:
    """An inference job that waits for a device: its id, and the id of its module run."""
    source = publish(service, worker, artifact(), 0.01)
    answer = service.http.post(f"/v1/jobs/{source}/inferences", json={"inputs": dataset(service)})
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["infers"], job["target"], job["state"]) == (source, worker.device.key, "queued")
    with service.database.begin() as session:
        jobs.set_device_class(session, job["id"], worker.device.key)
        jobs.advance(session, job["id"], {JobState.QUEUED}, JobState.PUBLISHING, 5.0)
        packed = blobs.put(session, b"artifact and inputs")
        return job["id"], module_runs.add(session, job["id"], "inference", packed, 5.0)


def put(worker: Worker, lease: LeaseId, run_id: int, data: bytes = OUTPUTS, session: str = "") -> str:
    message = outputs_to_wire(OutputsUpload(session or worker.session, lease, run_id, data))
    stored: pb.OutputsStored = worker.fleet.PutOutputs(message, timeout=20)
    return stored.refused


def test_a_devices_outputs_come_back(service: Service, worker: Worker, tmp_path: Path) -> None:
    worker.call(slots=0)
    job_id, run_id = running(service, worker)
    early = service.http.get(f"/v1/jobs/{job_id}/outputs")
    assert (early.status_code, early.json()["type"]) == (409, "urn:tunefarm:problem:no-outputs")
    lease = leased(worker, vitals=ABLE)
    [run] = lease.module_runs
    assert (run.id, run.kind) == (run_id, "inference")
    assert put(worker, lease.id, run_id, b"outputs of a first try") == ""
    assert put(worker, lease.id, run_id) == ""
    done = Result(1, lease.id, Measurement(Outcome.OK, (0.002,)), module_run_id=run_id)
    worker.call(slots=0, results=(done,))
    assert ("publish", job_id) in service.wakes
    with Client(service.url) as client:
        client.download_outputs(job_id, tmp_path / "outputs.npz")
    assert (tmp_path / "outputs.npz").read_bytes() == OUTPUTS
    assert "content-encoding" not in service.http.get(f"/v1/jobs/{job_id}/outputs").headers
    shown = service.http.get(f"/v1/jobs/{job_id}/inference").json()
    assert (shown["has_outputs"], shown["comparison"]) == (True, None)
    with service.database.begin() as session:
        found = Comparison((OutputDifference("y", 6, 2, 1e-6, 120.0),))
        inferences.set_comparison(session, job_id, found)
    comparison = service.http.get(f"/v1/jobs/{job_id}/inference").json()["comparison"]
    assert comparison["outputs"] == [
        {"name": "y", "elements": 6, "differing": 2, "largest": 1e-6, "db": 120.0}
    ]
    assert comparison["text"] == (
        "the outputs differ from ONNX Runtime's for the original model by at most 1e-06 "
        "(120.0 dB signal to noise, output 'y')"
    )
    # The lease is over, so nothing more is stored under it.
    assert put(worker, lease.id, run_id) == "the lease is over"


def test_outputs_are_refused_from_others_and_when_damaged(service: Service, worker: Worker) -> None:
    worker.call(slots=0)
    job_id, run_id = running(service, worker)
    lease = leased(worker, vitals=ABLE)
    assert put(worker, lease.id, run_id, session="another") == "the lease is over"
    assert put(worker, LeaseId("another", 1), run_id) == "the lease is over"
    assert put(worker, lease.id, run_id + 1) == "the lease is over"
    large = put(worker, lease.id, run_id, bytes(MAX_OUTPUTS_BYTES + 1))
    assert large == f"outputs have at most {MAX_OUTPUTS_BYTES} bytes, not {MAX_OUTPUTS_BYTES + 1}"
    message = outputs_to_wire(OutputsUpload(worker.session, lease.id, run_id, b"outputs"))
    message.data = b"damaged"
    assert "arrived damaged" in worker.fleet.PutOutputs(message, timeout=20).refused
    with service.database.begin() as session:
        assert inferences.get(session, job_id).outputs_sha is None


def test_an_older_worker_runs_no_inputs(service: Service, worker: Worker) -> None:
    worker.call(slots=0)
    job_id, _ = running(service, worker)
    assert worker.call().lease is None
    with service.database.begin() as session:
        [run] = module_runs.of_job(session, job_id)
    assert (run.state, run.error) == ("done", WITHOUT_INFERENCE)


def test_an_inference_that_cannot_run_is_refused(service: Service, worker: Worker) -> None:
    worker.call(slots=0)
    small = replace(DEVICE, name="a small one", features=(), vector_bytes=16)
    Worker(service.fleet, "small", device=small).call(slots=0)
    source, sha = publish(service, worker, artifact(), 0.01), dataset(service)
    unfinished = service.submit()
    for path, body, status, kind in (
        (source, {"inputs": "0" * 64}, 422, "unknown-dataset"),
        (source, {"inputs": sha, "target": "nowhere"}, 422, "unknown-target"),
        (source, {"inputs": sha, "target": small.key}, 409, "other-device"),
        (source, {"inputs": "../x"}, 422, "invalid-request"),
        (source, {}, 422, "invalid-request"),
        (unfinished, {"inputs": sha}, 409, "no-artifact"),
        ("nothing", {"inputs": sha}, 404, "job-not-found"),
    ):
        answer = service.http.post(f"/v1/jobs/{path}/inferences", json=body)
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:tunefarm:problem:{kind}")
    for path in ("inference", "outputs"):
        assert service.http.get(f"/v1/jobs/{source}/{path}").status_code == 404


def test_the_same_key_is_the_same_job(service: Service, worker: Worker) -> None:
    worker.call(slots=0)
    source, sha = publish(service, worker, artifact(), 0.01), dataset(service)
    ids = [
        service.http.post(
            f"/v1/jobs/{source}/inferences", json={"inputs": sha}, headers={"Idempotency-Key": "k"}
        ).json()["id"]
        for _ in range(2)
    ]
    assert ids[0] == ids[1]


def test_a_key_belongs_to_one_dataset(service: Service, worker: Worker) -> None:
    worker.call(slots=0)
    source = publish(service, worker, artifact(), 0.01)

    def start(rows: int) -> Any:
        body, headers = {"inputs": dataset(service, rows)}, {"Idempotency-Key": "once"}
        return service.http.post(f"/v1/jobs/{source}/inferences", json=body, headers=headers).json()

    first = start(2)
    assert start(2)["id"] == first["id"]
    assert start(3)["type"] == "urn:tunefarm:problem:idempotency-conflict"
    assert service.http.get(f"/v1/jobs/{first['id']}/inference").json()["inputs"] == dataset(service)
