"""Reserve a device for one token's jobs over HTTP, while devices call over gRPC."""

from __future__ import annotations

import threading

from core.job import JobState
from records.jobs import jobs, tasks, trials
from records.jobs.tasks import TaskSpec
from records.jobs.trials import NewTrial
from tests.devices import DEVICE

from .conftest import Service, Start, Worker, bearer
from .requests import leased

ADMIN = "s3cret"


def make_token(service: Service, name: str, scope: str = "submit") -> tuple[str, str]:
    """Return the id and the secret of a new token."""
    body = {"name": name, "scopes": [scope]}
    made = service.http.post("/v1/tokens", json=body, headers=bearer(ADMIN)).json()
    return made["id"], made["token"]


def tuning_job(service: Service, secret: str) -> str:
    """Submit a job with this token. Store a trial of it that waits for a device."""
    service.http.headers["Authorization"] = f"Bearer {secret}"
    job_id = service.submit()
    with service.database.begin() as session:
        jobs.set_device_class(session, job_id, DEVICE.key)
        jobs.advance(session, job_id, {JobState.QUEUED}, JobState.TUNING, 1.0)
        tasks.put_workload(session, "abc", "{}")
        tasks.add_tasks(session, job_id, [TaskSpec(job_id, "abc", "conv", 1, 1e6, True, "", (1,))])
        (task,) = tasks.for_job(session, job_id)
        trials.add(session, job_id, 1, [NewTrial(task.id, "abc", {}, "[]", 1e-3)], 2.0)
    return job_id


def trials_of(service: Service, job_id: str) -> list[int]:
    with service.database.reading() as session:
        (task,) = tasks.for_job(session, job_id)
        return [trial.id for trial in trials.for_task(session, task.id)]


def test_a_reserved_device_measures_one_tokens_jobs_and_others_the_rest(start: Start) -> None:
    service = start(token=ADMIN)
    board, spare = (Worker(service.fleet, id=name, token=ADMIN) for name in ("board", "spare"))
    board.call(slots=0)
    spare.call(slots=0)
    alice, secret = make_token(service, "alice")
    _, other = make_token(service, "bob")
    asked = {"minutes": 30, "holder": "alice"}
    shown = service.http.post("/v1/workers/board:reserve", json=asked, headers=bearer(ADMIN)).json()
    assert (shown["reserved_for"], shown["last_seen_at"] < shown["reserved_until"]) == ("alice", True)
    theirs = tuning_job(service, other)
    # The reserved worker looks for work in each poll, and must not hide what it may not take.
    waiting = threading.Thread(target=board.call, kwargs={"wait_s": 1.5})
    waiting.start()
    taken = spare.call(wait_s=20.0).lease
    waiting.join()
    assert taken is not None
    assert board.call().lease is None
    ours = tuning_job(service, secret)
    assert [one.trial_id for one in taken.candidates] == trials_of(service, theirs)
    assert [one.trial_id for one in leased(board).candidates] == trials_of(service, ours)
    refused = service.http.post("/v1/workers/board:unreserve")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:tunefarm:problem:scope-missing")
    shown = service.http.post("/v1/workers/board:unreserve", headers=bearer(ADMIN)).json()
    assert (shown["reserved_for"], shown["reserved_until"]) == (None, None)
    for holder in (alice, alice[:10]):
        answer = service.http.post(
            "/v1/workers/board:reserve", json={"holder": holder}, headers=bearer(ADMIN)
        )
        assert answer.json()["reserved_for"] == "alice"
    refused = service.http.post("/v1/workers/board:reserve", json={}, headers=bearer(ADMIN))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:tunefarm:problem:worker-reserved")
    assert refused.json()["detail"].startswith("Worker board is reserved for alice until ")
    service.http.post("/v1/workers/board:unreserve", headers=bearer(ADMIN))
    shown = service.http.post("/v1/workers/board:reserve", json={}, headers=bearer(ADMIN)).json()
    assert shown["reserved_for"] == "bootstrap"


def test_a_reservation_that_makes_no_sense_is_refused(start: Start) -> None:
    service = start(token=ADMIN)
    service.http.headers["Authorization"] = f"Bearer {ADMIN}"
    Worker(service.fleet, token=ADMIN).call()
    Worker(service.fleet, id="builder", token=ADMIN, builds_for=("x86_64",)).call()
    for _ in range(2):
        make_token(service, "twins")

    def refusal(worker: str = "board", **body: object) -> tuple[int, str]:
        answer = service.http.post(f"/v1/workers/{worker}:reserve", json=body)
        return answer.status_code, answer.json()["detail"]

    for minutes in (0, -1, 10081, 1e308, "60", None, True):
        assert refusal(minutes=minutes)[0] == 422, minutes
    body = b'{"minutes": NaN}'
    assert service.http.post("/v1/workers/board:reserve", content=body).status_code == 422
    assert refusal(holder="carol") == (
        422,
        "No valid token is called 'carol': `tunefarm token list` lists them with ids.",
    )
    assert refusal(holder="twins")[1].startswith("2 valid tokens are called 'twins': ")
    assert refusal("nobody") == (404, "There is no worker 'nobody'.")
    assert refusal("builder") == (409, "Worker builder only builds: name one that measures.")


def test_a_service_without_tokens_reserves_nothing(service: Service, worker: Worker) -> None:
    worker.call()
    answer = service.http.post("/v1/workers/board:reserve", json={})
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("This service needs no token, so nobody can tell jobs apart: ")
