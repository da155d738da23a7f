"""The beginning of an id stands for the only id that begins with it, in every route that takes an id."""

from __future__ import annotations

import pytest

from core.job import JobState
from records.jobs import jobs, tasks
from records.jobs.tasks import TaskSpec
from records.storage import blobs
from tests.devices import DEVICE

from .conftest import Service, Worker

HASH = "5178284402301854127"


def ids_of(service: Service) -> dict[str, str]:
    """Store a finished job with a subgraph, a token and a webhook. Return their ids by the parameter."""
    job_id = service.submit()
    with service.database.begin() as session:
        jobs.set_device_class(session, job_id, DEVICE.key)
        jobs.advance(session, job_id, {JobState.QUEUED}, JobState.DONE, 5.0)
        jobs.set_artifacts(session, job_id, tuned_sha=blobs.put(session, b"a tar file"))
        tasks.put_workload(session, HASH, '{"root":1}')
        tasks.add_tasks(session, job_id, [TaskSpec(job_id, HASH, "conv", 1, 1e6, True, "", (1,))])
    token = service.http.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}).json()
    hook = {"url": "https://ci.example.org/", "events": ["job.finished"]}
    webhook = service.http.post("/v1/webhooks", json=hook).json()
    return {"job_id": job_id, "workload": HASH, "token_id": token["id"], "webhook_id": webhook["id"]}


def test_every_route_that_returns_something_takes_short_ids(service: Service, worker: Worker) -> None:
    worker.call()
    full = ids_of(service)
    short = {name: one[:8] for name, one in full.items()}
    routes = [
        path
        for path, methods in service.http.get("/openapi.json").json()["paths"].items()
        if "get" in methods and any(f"{{{name}}}" in path for name in full)
    ]
    assert len(routes) > 10
    for route in routes:
        answer, expected = (service.http.get(route.format(**ids)) for ids in (short, full))
        assert (answer.status_code, answer.content) == (expected.status_code, expected.content), route


def test_what_changes_something_takes_short_ids(service: Service, worker: Worker) -> None:
    worker.call()
    full = ids_of(service)
    short = {name: one[:8] for name, one in full.items()}
    job, http = short["job_id"], service.http
    assert http.patch(f"/v1/jobs/{job}", json={"notes": "n"}).json()["id"] == full["job_id"]
    assert http.post(f"/v1/jobs/{job}:cancel").json()["detail"].startswith(f"Job {full['job_id']} is done")
    assert http.put("/v1/releases/production", json={"job": job}).json()["job"] == full["job_id"]
    assert http.get("/v1/schedules/export", params={"job": job}).status_code == 200
    assert http.delete("/v1/releases/production", params={"target": DEVICE.key}).status_code == 204
    assert http.delete(f"/v1/jobs/{job}").status_code == 204
    assert http.get(f"/v1/jobs/{full['job_id']}").status_code == 404
    assert http.delete(f"/v1/webhooks/{short['webhook_id']}").status_code == 204
    assert http.get("/v1/webhooks").json()["items"] == []
    assert http.delete(f"/v1/tokens/{short['token_id']}").json()["id"] == full["token_id"]
    subjects = {line["subject"] for line in http.get("/v1/audit").json()["items"]}
    assert set(full.values()) - {HASH} <= subjects
    assert not subjects & set(short.values())


@pytest.mark.parametrize("beginning", ["same", "%", "same_"])
def test_the_beginning_of_several_ids_or_none_is_refused(service: Service, beginning: str) -> None:
    submitted = service.submit()
    with service.database.begin() as session:
        request = jobs.get(session, submitted).request
        for job_id in ("same-1", "same-2"):
            jobs.create(session, job_id, request, jobs.Submission(1.0))
    answer = service.http.get("/v1/jobs/" + beginning.replace("%", "%25")).json()
    assert answer["type"] == "urn:tunefarm:problem:job-not-found"
    assert ("same-1, same-2" in answer["detail"]) is (beginning == "same")
