"""Every route has a summary and an example, and curl's command of each example works."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.job import Budget, JobState, Quantize
from core.quantization import OutputAccuracy, Quantization
from core.tokens import Scope
from core.webhook import WebhookEvent
from records import access, webhooks
from records.access import Token
from records.jobs import inferences, jobs, quantized_models, tasks, trials
from records.jobs.jobs import JobRequest
from records.jobs.tasks import TaskSpec
from records.jobs.trials import NewTrial
from records.schedules import cost_models
from records.schedules.cost_models import Version
from records.storage import blobs
from records.webhooks import Webhook
from server.api import examples
from server.api.examples import ADDRESS, EXAMPLES
from system.signing import make_key

from .conftest import Service, Start, Worker, onnx_model
from .requests import METRICS, leased, results

pytestmark = pytest.mark.slow
SECRET = "s3cret"


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.ones(4, np.float32))
    return file.getvalue()


def filled(service: Service, worker: Worker) -> Mapping[str, str]:
    """Store what the examples name. Map the ids in the examples to the ids that the server created."""
    worker.call()
    model = service.upload()
    data = service.http.post("/v1/datasets", content=npz()).json()["sha256"]
    plain = JobRequest(model, "resnet18", {"input": (1, 3, 224, 224)}, worker.device.key, Budget(1))
    with service.database.begin() as session:
        for job_id in (examples.JOB, examples.QUEUED_JOB):
            jobs.create(session, job_id, plain, jobs.Submission(1.0))
        jobs.create(
            session, examples.QUANTIZED_JOB, replace(plain, quantize=Quantize.INT8), jobs.Submission(1.0)
        )
        jobs.create(
            session, examples.INFERENCE_JOB, replace(plain, infers=examples.JOB), jobs.Submission(1.0)
        )
        jobs.set_device_class(session, examples.JOB, worker.device.key)
        jobs.advance(session, examples.JOB, {JobState.QUEUED}, JobState.TUNING, 1.0)
        tasks.put_workload(session, examples.WORKLOAD, '{"root":1}')
        tasks.add_tasks(
            session, examples.JOB, [TaskSpec(examples.JOB, examples.WORKLOAD, "conv", 1, 1e6, True, "", (1,))]
        )
        (task,) = tasks.for_job(session, examples.JOB)
        trials.add(session, examples.JOB, 1, [NewTrial(task.id, examples.WORKLOAD, {}, "[[],[]]", 1e-3)], 2.0)
    worker.call(results=results(leased(worker)))
    with service.database.begin() as session:
        for job_id in (examples.JOB, examples.QUANTIZED_JOB, examples.INFERENCE_JOB):
            jobs.advance(session, job_id, {JobState.QUEUED, JobState.TUNING}, JobState.DONE, 5.0)
        jobs.set_artifacts(session, examples.JOB, tuned_sha=blobs.put(session, b"a tar file"))
        jobs.set_end_to_end(session, examples.JOB, "untuned", (0.5, 0.6))
        jobs.set_end_to_end(session, examples.JOB, "tuned", (0.1, 0.2))
        accuracy = Quantization(Quantize.INT8, True, 0, 2, 0, (OutputAccuracy("y", 30.0),), ())
        request = jobs.get(session, examples.QUANTIZED_JOB).request
        quantized_models.put(session, request, None, blobs.put(session, b"quantized"), accuracy)
        inferences.add(session, examples.INFERENCE_JOB, data)
        inferences.set_outputs(session, examples.INFERENCE_JOB, blobs.put(session, b"outputs"))
        cost_models.add(session, Version(worker.device.key, 100, 5.0, 6.0, 0.25, METRICS), b"trees")
        token = Token(examples.TOKEN, "reader", frozenset({Scope.READ}), 1.0)
        access.add_token(session, token, "0" * 64)
        webhook = Webhook(
            examples.WEBHOOK, "https://ci.example.org/", (WebhookEvent.JOB_FINISHED,), "whsec_x", 1.0
        )
        webhooks.add(session, webhook)
    return {examples.MODEL: model, examples.DATASET: data, examples.DEVICE_CLASS: worker.device.key}


def test_every_example_is_answered(start: Start, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: apt-get install curl")
    make_key(tmp_path / "key.pem")
    service = start(token=SECRET, signing_key=tmp_path / "key.pem")
    service.http.headers["Authorization"] = f"Bearer {SECRET}"
    made_up = filled(service, Worker(service.fleet, id=examples.WORKER, token=SECRET))
    (tmp_path / "model.onnx").write_bytes(onnx_model())
    (tmp_path / "data.npz").write_bytes(npz())
    (tmp_path / ".curlrc").write_text(
        f'fail-with-body\nsilent\nnoproxy = "*"\nmax-time = 20\nheader = "Authorization: Bearer {SECRET}"\n'
    )
    document = service.http.get("/openapi.json").json()
    routes = {f"{m.upper()} {path}": one for path, ms in document["paths"].items() for m, one in ms.items()}
    assert routes.keys() == EXAMPLES.keys()
    for route in EXAMPLES:
        operation = routes[route]
        assert 10 < len(operation["summary"]) < 110, route
        (sample,) = operation["x-codeSamples"]
        command = sample["source"].replace(ADDRESS, service.url)
        for example, real in made_up.items():
            command = command.replace(example, real)
        environment = {"CURL_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert (tmp_path / "resnet18.tar").read_bytes() == b"a tar file"
