"""Schedules over HTTP: best ones, export and import."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Service, Start, Worker


def trace_of(number: int) -> str:
    """Return a trace that does nothing and differs from those of other numbers."""
    return json.dumps([[["EnterPostproc", [], [], []]] * number, []], separators=(",", ":"))


def database(*latencies: float, workload: str = "abc") -> dict[str, Any]:
    records = [
        {"workload": workload, "trace": trace_of(n), "run_secs": [secs], "target": '{"kind":"llvm"}'}
        for n, secs in enumerate(latencies)
    ]
    return {"workloads": [{"hash": workload, "module_json": '{"root":1}'}], "records": records}


@pytest.fixture
def ready(service: Service, worker: Worker) -> Service:
    """A service that knows one device class."""
    worker.call()
    return service


def test_an_import_is_what_export_gives(ready: Service) -> None:
    body = database(3e-3, 1e-3, 2e-3)
    answer = ready.http.post("/v1/schedules/import", json=body).json()
    assert (answer["records"], answer["added"]) == (3, 3)
    assert ready.http.post("/v1/schedules/import", json=body).json()["added"] == 0
    exported = ready.http.get("/v1/schedules/export").json()
    assert exported["workloads"] == body["workloads"]
    fastest_first = sorted(body["records"], key=lambda record: record["run_secs"])
    assert exported["records"] == fastest_first


def test_a_schedule_that_carries_code_is_refused_and_nothing_is_stored(ready: Service) -> None:
    body = database(3e-3, 1e-3)
    code = ["Annotate", ["l1", '"define void @x() { ret void }"'], ["pragma_import_llvm"], []]
    body["records"][1]["trace"] = json.dumps([[code], []])
    answer = ready.http.post("/v1/schedules/import", json=body)
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("trace-refused")
    assert "pragma_import_llvm" in answer.json()["detail"]
    assert ready.http.get("/v1/schedules/export").json()["records"] == []


def test_many_workloads_are_exported(ready: Service) -> None:
    parts = [database(1e-3, workload=f"w{number}") for number in range(60)]
    body = {key: [one for part in parts for one in part[key]] for key in ("workloads", "records")}
    assert ready.http.post("/v1/schedules/import", json=body).json()["added"] == 60
    exported = ready.http.get("/v1/schedules/export").json()
    assert {one["hash"] for one in exported["workloads"]} == {f"w{number}" for number in range(60)}
    assert len(exported["records"]) == 60


def test_nothing_is_exported_of_a_class_without_schedules(ready: Service) -> None:
    assert ready.http.get("/v1/schedules/export").json() == {"workloads": [], "records": []}


def test_a_job_without_a_device_is_not_exported_yet(ready: Service) -> None:
    answer = ready.http.get("/v1/schedules/export", params={"job": ready.submit()})
    assert (answer.status_code, answer.json()["title"]) == (409, "Job not started")


def test_the_best_schedule_is_the_fastest(ready: Service, worker: Worker) -> None:
    ready.http.post("/v1/schedules/import", json=database(3e-3, 1e-3))
    for target in ("native", worker.device.key, worker.device.name):
        best = ready.http.get("/v1/schedules/best", params={"workload": "abc", "target": target}).json()
        assert (best["trace"], best["latency_s"], best["source"]) == (trace_of(1), 1e-3, "import")
    query = {"workloads": ["abc", "other"]}
    answer = ready.http.post("/v1/schedules:query", json=query).json()
    assert answer == {"device_class": worker.device.key, "schedules": {"abc": best, "other": None}}


def test_an_unknown_workload_has_no_schedule(ready: Service) -> None:
    answer = ready.http.get("/v1/schedules/best", params={"workload": "nope"})
    assert (answer.status_code, answer.json()["title"]) == (404, "No schedule")


def test_without_a_worker_nothing_is_native(start: Start) -> None:
    answer = start().http.get("/v1/schedules/best", params={"workload": "abc"})
    assert answer.status_code == 422
    assert "No worker is ready" in answer.json()["detail"]


def changed(field: str, value: object) -> dict[str, Any]:
    body = database(1e-3)
    part = "workloads" if field in body["workloads"][0] else "records"
    body[part][0][field] = value
    return body


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"workloads": [], "records": {}},
        changed("hash", "../x"),
        changed("module_json", "{"),
        changed("workload", "unheard-of"),
        changed("trace", "not JSON"),
        changed("trace", 5),
        changed("target", "llvm"),
        changed("run_secs", []),
        changed("run_secs", [0.0]),
        changed("run_secs", [-1.0]),
        changed("run_secs", ["1"]),
        changed("run_secs", [1e-3] * 20_000),
        database(1e-3) | {"comment": "hi"},
    ],
)
def test_an_invalid_import_stores_nothing(ready: Service, body: dict[str, Any]) -> None:
    answer = ready.http.post("/v1/schedules/import", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert ready.http.get("/v1/schedules/export").json()["records"] == []


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[" * 50_000, json.dumps(database(float("nan"))).encode()]
)
def test_a_body_that_is_no_import_is_refused(ready: Service, content: bytes) -> None:
    assert ready.http.post("/v1/schedules/import", content=content).status_code == 422


def test_an_import_needs_a_known_device_class(ready: Service) -> None:
    answer = ready.http.post("/v1/schedules/import?target=toaster", json=database(1e-3))
    assert answer.status_code == 422
    assert answer.json()["known"]
