"""An example request for every route, as values for the OpenAPI document and as a curl command.

`tests/integration/server/test_examples.py` sends every command to a server.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

ADDRESS = "http://127.0.0.1:8760"
# Ids of the examples. The test replaces ids that the server generates.
MODEL = "3f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea"
DATASET = "9b74c9897bac770ffc029102a200c5de9c0d3d3a5f3e1b1f5a8f6c0c8d1d2e3f"
JOB, QUEUED_JOB = "7d0f6a1e4c2b49f0a8e3d1c5b6f79a20", "1c9be02d5f7e4a4b93d86a1f0e2c7b35"
INFERENCE_JOB, QUANTIZED_JOB = "b2a7c4d9e1f04c63875b0a9d3e6f1c48", "e85d1f3a7b6c4e0292a4c6d8f0b1e37d"
WORKLOAD = "5178284402301854127"
DEVICE_CLASS = "a1b2c3d4e5f60718"
WORKER = "board"
TOKEN, WEBHOOK = "5e1f0c3b8a7d4926", "0d9c8b7a6f5e4d3c"


@dataclass(frozen=True)
class Example:
    """A request. `path` fills the path's parameters. The body is `body` as JSON, or the content of `file`.
    The response is stored as the file `output`, if that is given.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    file: str = ""
    content_type: str = "application/json"
    output: str = ""

    def curl(self, route: str) -> str:
        """Return the curl command of a route, such as "GET /v1/jobs"."""
        method, template = route.split(" ")
        url = ADDRESS + template.format(**self.path) + ("?" + urlencode(self.query) if self.query else "")
        words = ["curl"] if method == "GET" else ["curl", "-X", method]
        words.append(shlex.quote(url))
        headers = dict(self.headers)
        if self.body is not None or self.file:
            headers["Content-Type"] = self.content_type
        for name, value in headers.items():
            words += ["-H", shlex.quote(f"{name}: {value}")]
        if self.body is not None:
            words += ["-d", shlex.quote(json.dumps(self.body))]
        if self.file:
            words += ["--data-binary", f"@{self.file}"]
        if self.output:
            words += ["-o", self.output]
        return " ".join(words)


_OF_JOB, _OF_WORKER = {"job_id": JOB}, {"worker_id": WORKER}
_BINARY = "application/octet-stream"
_RELEASE = {"name": "production"}

# In an order in which all of them succeed.
EXAMPLES: Mapping[str, Example] = {
    "GET /healthz": Example(),
    "GET /readyz": Example(),
    "GET /metrics": Example(),
    "GET /v1/session": Example(),
    "POST /v1/session": Example(),
    "DELETE /v1/session": Example(),
    "POST /v1/models": Example(query={"name": "resnet18"}, file="model.onnx", content_type=_BINARY),
    "POST /v1/models/{sha}/outline": Example({"sha": MODEL}),
    "GET /v1/models/{sha}/outline": Example({"sha": MODEL}),
    "POST /v1/datasets": Example(query={"name": "images"}, file="data.npz", content_type=_BINARY),
    "POST /v1/jobs": Example(
        headers={"Idempotency-Key": "nightly-2026-11-26"},
        body={"model": MODEL, "shapes": {"input": [1, 3, 224, 224]}, "target": "native", "trials": 300},
    ),
    "GET /v1/jobs": Example(query={"words": "resnet", "state": "done", "limit": "20"}),
    "GET /v1/jobs/{job_id}": Example(_OF_JOB),
    "PATCH /v1/jobs/{job_id}": Example(
        _OF_JOB, body={"tags": ["nightly"], "notes": "After the new front end."}
    ),
    "GET /v1/jobs/{job_id}/events": Example(_OF_JOB),
    "GET /v1/jobs/{job_id}/tasks": Example(_OF_JOB),
    "GET /v1/jobs/{job_id}/tasks/{workload}": Example({**_OF_JOB, "workload": WORKLOAD}),
    "GET /v1/jobs/{job_id}/trials": Example(_OF_JOB),
    "GET /v1/jobs/{job_id}/report": Example(_OF_JOB, output="report.html"),
    "GET /v1/jobs/{job_id}/artifact": Example(_OF_JOB, output="resnet18.tar"),
    "GET /v1/artifacts/best": Example(
        query={"model": MODEL, "target": DEVICE_CLASS, "shape": "input=1,3,224,224"}, output="best.tar"
    ),
    "GET /v1/jobs/{job_id}/quantization": Example({"job_id": QUANTIZED_JOB}),
    "GET /v1/jobs/{job_id}/quantization/model": Example({"job_id": QUANTIZED_JOB}, output="quantized.onnx"),
    "POST /v1/jobs/{job_id}/inferences": Example(_OF_JOB, body={"inputs": DATASET}),
    "GET /v1/jobs/{job_id}/inference": Example({"job_id": INFERENCE_JOB}),
    "GET /v1/jobs/{job_id}/outputs": Example({"job_id": INFERENCE_JOB}, output="outputs.npz"),
    "POST /v1/jobs/{job_id}:cancel": Example({"job_id": QUEUED_JOB}),
    "GET /v1/signing-key": Example(),
    "PUT /v1/releases/{name}": Example(_RELEASE, body={"job": JOB}),
    "GET /v1/releases": Example(),
    "GET /v1/releases/{name}": Example(_RELEASE),
    "GET /v1/releases/{name}/artifact": Example(_RELEASE, output="production.tar"),
    "DELETE /v1/releases/{name}": Example(_RELEASE),
    "GET /v1/schedules": Example(query={"words": "conv2d 56,56"}),
    "GET /v1/schedules/best": Example(query={"workload": WORKLOAD, "target": DEVICE_CLASS}),
    "POST /v1/schedules:query": Example(
        body={"target": DEVICE_CLASS, "workloads": [WORKLOAD], "nearest": True}
    ),
    "GET /v1/schedules/export": Example(query={"target": DEVICE_CLASS}, output="schedules.json"),
    "POST /v1/schedules/import": Example(query={"target": DEVICE_CLASS}, file="schedules.json"),
    "DELETE /v1/schedules/imported": Example(query={"target": DEVICE_CLASS}),
    "GET /v1/workloads/{workload}": Example({"workload": WORKLOAD}),
    "GET /v1/cost-models": Example(),
    "GET /v1/cost-models/{device_class}/versions": Example({"device_class": DEVICE_CLASS}),
    "GET /v1/device-classes": Example(),
    "GET /v1/workers": Example(),
    "GET /v1/workers/{worker_id}/noise": Example(_OF_WORKER),
    "POST /v1/workers/{worker_id}:drain": Example(_OF_WORKER),
    "POST /v1/workers/{worker_id}:evict": Example(_OF_WORKER),
    "POST /v1/workers/{worker_id}:resume": Example(_OF_WORKER),
    "POST /v1/workers/{worker_id}:reserve": Example(_OF_WORKER, body={"minutes": 120, "holder": TOKEN}),
    "POST /v1/workers/{worker_id}:unreserve": Example(_OF_WORKER),
    "POST /v1/workers/{worker_id}:update": Example(_OF_WORKER),
    "POST /v1/workers/{worker_id}:calibrate": Example(_OF_WORKER),
    "POST /v1/tokens": Example(body={"name": "ci", "scopes": ["submit"], "expires_after_s": 2592000}),
    "GET /v1/tokens": Example(),
    "DELETE /v1/tokens/{token_id}": Example({"token_id": TOKEN}),
    "GET /v1/audit": Example(query={"limit": "20"}),
    "POST /v1/webhooks": Example(body={"url": "https://ci.example.org/hook", "events": ["job.finished"]}),
    "GET /v1/webhooks": Example(),
    "GET /v1/webhooks/{webhook_id}/deliveries": Example({"webhook_id": WEBHOOK}),
    "DELETE /v1/webhooks/{webhook_id}": Example({"webhook_id": WEBHOOK}),
    "DELETE /v1/jobs/{job_id}": Example(_OF_JOB),
}


def add_examples(document: dict[str, Any]) -> None:
    """Give every operation of an OpenAPI document its summary and its example."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            route = f"{method.upper()} {path}"
            example = EXAMPLES[route]
            operation["summary"] = _first_sentence(operation["description"])
            values = {
                **example.path,
                **example.query,
                **{name.lower(): one for name, one in example.headers.items()},
            }
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in values:
                    parameter["example"] = values[parameter["name"]]
            if example.body is not None:
                operation["requestBody"]["content"]["application/json"]["example"] = dict(example.body)
            operation["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": example.curl(route)}]


def _first_sentence(text: str) -> str:
    """Return the first sentence of a description, in one line, without a full stop."""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")
