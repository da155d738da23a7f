"""Jobs over HTTP: submitting, listing, cancelling and fetching."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.job import MAX_TRIALS, EndReason, JobState, Quantize
from core.quantization import LayerAccuracy, OutputAccuracy, Quantization
from records.jobs import jobs, quantized_models, tasks
from records.jobs.tasks import TaskSpec
from records.storage import blobs
from tunefarm.client import Client

from .conftest import Service, Worker, on_both_databases, onnx_model

pytestmark = on_both_databases


def finish(service: Service, job_id: str, state: JobState = JobState.DONE) -> None:
    with service.database.begin() as session:
        assert jobs.advance(session, job_id, {JobState.QUEUED}, state, 5.0, error="it broke")


def test_a_job_is_accepted_and_shown(service: Service) -> None:
    sha = service.upload()
    body = {"model": sha, "trials": 12, "minutes": 2.5, "seed": 7, "shapes": {"x": [1, 3]}}
    answer = service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert service.wakes == [("intake", job["id"])]
    shown = service.http.get(answer.headers["location"]).json()
    assert shown == job
    assert (shown["state"], shown["model"], shown["model_name"]) == ("queued", sha, "relu")
    assert (shown["trials"], shown["minutes"], shown["seed"], shown["shapes"]) == (12, 2.5, 7, {"x": [1, 3]})


def test_the_same_idempotency_key_is_the_same_job(service: Service) -> None:
    body = {"model": service.upload(), "trials": 10}
    first, second = (
        service.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"}) for _ in range(2)
    )
    assert first.json()["id"] == second.json()["id"]
    other = service.http.post("/v1/jobs", json=body | {"trials": 11}, headers={"Idempotency-Key": "k1"})
    assert other.status_code == 409
    assert other.json()["type"] == "urn:tunefarm:problem:idempotency-conflict"
    assert len(service.http.get("/v1/jobs").json()["items"]) == 1


def test_without_a_key_every_request_is_a_new_job(service: Service) -> None:
    assert service.submit() != service.submit()


def test_jobs_are_listed_by_page_newest_first(service: Service) -> None:
    ids = [service.submit() for _ in range(5)]
    seen, before = [], None
    while True:
        query = {"limit": 2} if before is None else {"limit": 2, "before": before}
        page = service.http.get("/v1/jobs", params=query).json()
        seen += [job["id"] for job in page["items"]]
        before = page["next"]
        if before is None:
            break
    assert seen == ids[::-1]


def test_jobs_are_found_by_the_start_of_their_ids(service: Service) -> None:
    first, *_ = service.submit(), service.submit()
    for start, found in ((first, [first]), ("%", []), ("nothing", [])):
        page = service.http.get("/v1/jobs", params={"starts_with": start}).json()
        assert [job["id"] for job in page["items"]] == found
    with service.database.begin() as session:
        for job_id in ("same-1", "same-2"):
            job = jobs.get(session, first)
            jobs.create(session, job_id, job.request, jobs.Submission(job.created_at + 5))
    page = service.http.get("/v1/jobs", params={"starts_with": "same-"}).json()
    assert {job["id"] for job in page["items"]} == {"same-1", "same-2"}


def test_an_unknown_objective_is_refused_before_the_model_is_read(service: Service) -> None:
    body = {"model": service.upload(), "trials": 8, "objective": "nope"}
    answer = service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert "choose one of early-stopping, requirements, speedup, sum" in answer.json()["detail"]


def test_an_unfinished_job_is_cancelled_once_and_for_all(service: Service) -> None:
    job_id = service.submit()
    for _ in range(2):
        answer = service.http.post(f"/v1/jobs/{job_id}:cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")


def test_a_finished_job_is_not_cancelled(service: Service) -> None:
    job_id = service.submit()
    finish(service, job_id)
    answer = service.http.post(f"/v1/jobs/{job_id}:cancel")
    assert (answer.status_code, answer.json()["title"]) == (409, "Job finished")


def test_a_finished_job_is_deleted(service: Service) -> None:
    job_id, other = service.submit(), service.submit()
    early = service.http.delete(f"/v1/jobs/{job_id}")
    assert (early.status_code, early.json()["type"]) == (409, "urn:tunefarm:problem:job-in-use")
    assert early.json()["detail"] == f"Job {job_id} is queued: cancel it first."
    service.http.post(f"/v1/jobs/{job_id}:cancel")
    assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert service.http.get(f"/v1/jobs/{job_id}").status_code == 404
    assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 404
    assert [job["id"] for job in service.http.get("/v1/jobs").json()["items"]] == [other]


def test_a_jobs_tasks_are_shown(service: Service) -> None:
    job_id = service.submit()
    with service.database.begin() as session:
        tasks.put_workload(session, "abc", "{}")
        spec = TaskSpec(
            job_id, "abc", "conv", 3, 1e6, covered=False, reason="a loop", constants=(1,), layer="block.3"
        )
        tasks.add_tasks(session, job_id, [spec])
    (task,) = service.http.get(f"/v1/jobs/{job_id}/tasks").json()["items"]
    assert (task["workload"], task["name"], task["weight"], task["best_s"]) == ("abc", "conv", 3, None)
    assert (task["covered"], task["reason"]) == (False, "a loop")
    assert (task["layer"], task["verdict"]) == ("block.3", "")


def test_people_tag_jobs_and_write_notes(service: Service) -> None:
    first, second = service.submit(), service.submit()
    path = f"/v1/jobs/{first}"
    changed = service.http.patch(
        path, json={"tags": ["nightly", "ci/main", "nightly"], "notes": "slow\n100% of it"}
    )
    assert changed.status_code == 200
    assert (changed.json()["tags"], changed.json()["notes"]) == (["nightly", "ci/main"], "slow\n100% of it")
    assert service.http.patch(path, json={"notes": "slower"}).json()["tags"] == ["nightly", "ci/main"]

    def listed(**query: str) -> list[str]:
        return [job["id"] for job in service.http.get("/v1/jobs", params=query).json()["items"]]

    assert listed(tag="ci/main") == listed(words="NIGHT slower") == [first]
    assert listed(tag="night") == []
    assert set(listed(words="relu")) == {first, second}
    assert service.http.patch(path, json={"tags": [], "notes": ""}).json()["tags"] == []
    assert listed(tag="nightly") == []


@pytest.mark.parametrize(
    "changes",
    [
        *({"tags": tags} for tags in (["a b"], [""], ["a"] * 21, "a")),
        *({"notes": notes} for notes in ("\x1b[31m", "a" * 4001, 3)),
        {"title": "a"},
    ],
)
def test_tags_and_notes_that_cannot_be_kept_are_refused(service: Service, changes: dict[str, object]) -> None:
    job_id = service.submit()
    assert service.http.patch(f"/v1/jobs/{job_id}", json=changes).status_code == 422
    assert service.http.patch("/v1/jobs/nobody", json={"notes": "a"}).status_code == 404


def test_jobs_are_listed_by_their_device(service: Service, worker: Worker) -> None:
    worker.call()
    here, elsewhere = service.submit(), service.submit()
    with service.database.begin() as session:
        assert jobs.set_device_class(session, here, worker.device.key)
    answer = service.http.get("/v1/jobs", params={"device_class": worker.device.key})
    assert [job["id"] for job in answer.json()["items"]] == [here]
    assert elsewhere != here


def test_the_artifact_is_there_when_the_job_is_done(service: Service) -> None:
    job_id = service.submit()
    early = service.http.get(f"/v1/jobs/{job_id}/artifact")
    assert (early.status_code, early.json()["state"]) == (409, "queued")
    data = bytes(range(256)) * 40_000
    with service.database.begin() as session:
        assert jobs.set_artifacts(session, job_id, tuned_sha=blobs.put(session, data))
    finish(service, job_id)
    answer = service.http.get(f"/v1/jobs/{job_id}/artifact")
    assert answer.status_code == 200
    assert answer.content == data
    assert answer.headers["content-type"] == "application/x-tar"


def test_a_failed_job_has_no_artifact_and_says_why(service: Service) -> None:
    job_id = service.submit()
    finish(service, job_id, JobState.FAILED)
    answer = service.http.get(f"/v1/jobs/{job_id}/artifact")
    assert answer.status_code == 409
    assert "it broke" in answer.json()["detail"]


def test_an_unknown_target_lists_the_device_classes(service: Service, worker: Worker) -> None:
    worker.call()
    for target in (worker.device.key, worker.device.name):
        job = service.http.get(f"/v1/jobs/{service.submit(target=target)}").json()
        assert job["target"] == target
    body = {"model": service.upload(), "trials": 1, "target": "toaster"}
    answer = service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert "'toaster'" in answer.json()["detail"]
    assert answer.json()["known"] == [{"key": worker.device.key, "name": worker.device.name}]


@pytest.mark.parametrize("path", ["", "/tasks", "/artifact", "/events"])
def test_an_unknown_job_is_not_found(service: Service, path: str) -> None:
    answer = service.http.get(f"/v1/jobs/nope{path}")
    assert answer.status_code == 404
    assert answer.json()["type"] == "urn:tunefarm:problem:job-not-found"
    assert answer.json()["detail"] == "There is no job 'nope'."


def test_any_goal_will_do(service: Service) -> None:
    model = service.upload()
    for goal in ({"minutes": 1.5}, {"latency_s": 0.25}, {"min_gain": 0.01}):
        job = service.http.post("/v1/jobs", json={"model": model, **goal}).json()
        assert {name: job[name] for name in goal} == goal
        assert job["trials"] == MAX_TRIALS
        assert (job["end_reason"], job["seconds_left"], job["members"]) == (None, None, [])


@pytest.mark.parametrize(
    ("goals", "why"),
    [
        ({}, "trials must be at least 1"),
        ({"minutes": 1.0, "trials": 0}, "trials must be at least 1"),
        ({"latency_s": 0.0}, "greater than 0"),
        ({"min_gain": 1.0}, "less than 1"),
        ({"compile_only": True, "min_gain": 0.1}, "compile_only searches nothing"),
        ({"trials": 1, "exact": True, "tf32": True}, "tf32 is not exact"),
        ({"trials": 5, "objective": "requirements"}, "needs latency_s of every model"),
        ({"trials": 5, "batch": 0}, "greater than or equal to 1"),
        ({"latency_s": 0.1, "others": [{"model": "0" * 64}]}, "trials must be at least 1"),
    ],
)
def test_impossible_goals_are_refused(service: Service, goals: dict[str, Any], why: str) -> None:
    answer = service.http.post("/v1/jobs", json={"model": service.upload(), **goals})
    assert answer.status_code == 422
    assert why in answer.text


def test_several_models_are_compiled_without_trials(service: Service) -> None:
    model = service.upload()
    sizes = [{"model": model, "shapes": {"x": [size]}} for size in (1, 2)]
    body = {**sizes[0], "compile_only": True, "others": sizes[1:]}
    members = service.http.post("/v1/jobs", json=body).json()["members"]
    jobs = [service.http.get(f"/v1/jobs/{one}").json() for one in members]
    assert [(job["model"], job["shapes"], job["trials"]) for job in jobs] == [
        (model, {"x": [1]}, 0),
        (model, {"x": [2]}, 0),
    ]


def two_models(service: Service) -> dict[str, Any]:
    other = {"model": service.upload(onnx_model(7)), "model_weight": 0.5, "latency_s": 0.1}
    return {"model": service.upload(), "trials": 12, "latency_s": 0.2, "batch": 4, "others": [other]}


def test_several_models_become_a_job_each(service: Service) -> None:
    body = two_models(service)
    answers = [
        service.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"}).json() for _ in range(2)
    ]
    assert answers[0] == answers[1]
    members = answers[0]["members"]
    assert members == [answers[0]["id"], f"{answers[0]['id']}-2"]
    first, second = (service.http.get(f"/v1/jobs/{one}").json() for one in members)
    assert (first["members"], second["members"]) == (members, members)
    assert (first["model"], second["model"]) == (body["model"], body["others"][0]["model"])
    assert (first["model_weight"], second["model_weight"]) == (1.0, 0.5)
    assert (first["latency_s"], second["latency_s"]) == (0.2, 0.1)
    assert first["objective"] == second["objective"] == "requirements"
    # Together they get as much of the devices as one job.
    assert first["weight"] == second["weight"] == 0.5
    assert [job["id"] for job in service.http.get("/v1/jobs").json()["items"]] == members[::-1]
    for others in ([], body["others"] * 2, [{"model": body["model"]}]):
        changed = body | {"others": others}
        answer = service.http.post("/v1/jobs", json=changed, headers={"Idempotency-Key": "k1"})
        assert answer.status_code == 409


def test_an_unknown_other_model_is_named(service: Service) -> None:
    body = two_models(service) | {"others": [{"model": "1" * 64}]}
    answer = service.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tunefarm:problem:unknown-model")
    assert "1" * 64 in answer.json()["detail"]
    assert service.http.get("/v1/jobs").json()["items"] == []


def test_cancelling_a_job_cancels_its_group(service: Service) -> None:
    members = service.http.post("/v1/jobs", json=two_models(service)).json()["members"]
    assert service.http.post(f"/v1/jobs/{members[1]}:cancel").json()["state"] == "cancelled"
    assert service.http.get(f"/v1/jobs/{members[0]}").json()["state"] == "cancelled"


def test_the_end_reason_and_the_remaining_time_are_shown(service: Service) -> None:
    job_id = service.submit()
    now = service.context.now()
    with service.database.begin() as session:
        jobs.set_expected_end(session, job_id, now + 100)
        before = {JobState.QUEUED}
        jobs.advance(session, job_id, before, JobState.PUBLISHING, now, end_reason=EndReason.GAIN)
    job = service.http.get(f"/v1/jobs/{job_id}").json()
    assert job["end_reason"] == "gain"
    assert 0 < job["seconds_left"] <= 100


def test_a_job_quantizes_its_model_with_a_dataset(service: Service, tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez(file, x=np.ones((4, 3), np.float32))
    stored = service.http.post("/v1/datasets?name=images", content=file.getvalue())
    assert stored.status_code == 201
    assert (stored.json()["name"], stored.json()["size"]) == ("images", len(file.getvalue()))
    sha = stored.json()["sha256"]
    body = {"model": service.upload(), "trials": 1, "quantize": "int8", "calibration": sha}
    job = service.http.post("/v1/jobs", json=body).json()
    assert (job["quantize"], job["calibration"]) == ("int8", sha)
    early = service.http.get(f"/v1/jobs/{job['id']}/quantization")
    assert (early.status_code, early.json()["type"]) == (404, "urn:tunefarm:problem:not-quantized")
    made = bytes(range(256)) * 200  # more than the service would compress
    layer = LayerAccuracy("conv\x1b[31m", "Conv", kept=True, own_db=None, total_db=31.5)
    found = Quantization(Quantize.INT8, False, 4, 4, 1, (OutputAccuracy("y", 30.0),), (layer,), narrow=2)
    with service.database.begin() as session:
        request = jobs.get(session, job["id"]).request
        quantized_models.put(session, request, None, blobs.put(session, made), found)
    shown = service.http.get(f"/v1/jobs/{job['id']}/quantization").json()
    assert shown["layers"] == [
        {"name": "conv\ufffd[31m", "operator": "Conv", "kept": True, "own_db": None, "total_db": 31.5}
    ]
    assert shown["text"] == (
        "quantized (int8): 30.0 dB signal to noise against float32 on 4 calibration samples, "
        "weights of 2 layers in 7 bits, 1 layer kept in float32"
    )
    assert shown["narrow"] == 2
    with Client(service.url) as client:
        client.download_quantized(job["id"], tmp_path / "quantized.onnx")
    assert (tmp_path / "quantized.onnx").read_bytes() == made
    assert '"own_db": null' in service.http.get(f"/v1/jobs/{job['id']}/report").text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"quantize": "int8", "calibration": "0" * 64},
            f"No dataset is stored as {'0' * 64}: upload it first.",
        ),
        ({"quantize": "int8", "calibration": "\x00"}, "No dataset is stored as"),
        ({"calibration": "0" * 64}, "calibration is used to quantize a model: add quantize int8"),
        ({"quantize": "int2"}, "quantize"),
    ],
)
def test_a_job_that_cannot_be_quantized_is_refused(
    service: Service, changes: dict[str, str], said: str
) -> None:
    answer = service.http.post("/v1/jobs", json={"model": service.upload(), "trials": 1} | changes)
    assert answer.status_code == 422
    assert said in answer.text


def test_only_npz_files_are_datasets(service: Service) -> None:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("run.py", "")
    for content, said in (
        (b"", "This is no .npz file"),
        (onnx_model(), "This is no .npz file"),
        (other.getvalue(), "holds other files than arrays: save the inputs by numpy.savez"),
    ):
        answer = service.http.post("/v1/datasets", content=content)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:tunefarm:problem:not-npz")
        assert said in answer.json()["detail"]
