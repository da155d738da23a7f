"""Watching a job by server-sent events."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import httpx
import httpx_sse
import pytest

from core.job import JobState
from records.jobs import events, jobs

from .conftest import Service


def advance(service: Service, job_id: str, to: JobState) -> None:
    with service.database.begin() as session:
        expected = {state for state in JobState if not state.finished}
        assert jobs.advance(session, job_id, expected, to, time.time())


def watch(
    service: Service, job_id: str, after: str | None = None
) -> Generator[httpx_sse.ServerSentEvent, None, None]:
    headers = {} if after is None else {"Last-Event-ID": after}
    with httpx_sse.connect_sse(service.http, "GET", f"/v1/jobs/{job_id}/events", headers=headers) as source:
        assert source.response.status_code == 200
        yield from source.iter_sse()


def test_a_watcher_sees_everything_and_then_the_end(service: Service) -> None:
    job_id = service.submit()
    advance(service, job_id, JobState.TUNING)
    ending = threading.Timer(0.5, lambda: advance(service, job_id, JobState.DONE))
    ending.start()
    seen = list(watch(service, job_id))
    states = [event.json()["state"] for event in seen if event.event == "state"]
    assert states[-2:] == ["tuning", "done"]
    assert all(event.json()["at"] > 0 for event in seen)
    ids = [int(event.id) for event in seen]
    assert ids == sorted(set(ids))


def test_a_subscriber_resumes_after_the_last_event_id(service: Service) -> None:
    job_id = service.submit()
    for number in range(500):
        with service.database.begin() as session:
            events.append(session, job_id, "note", {"number": number}, 1.0)
    first = watch(service, job_id)
    seen = [next(first) for _ in range(250)]
    first.close()
    advance(service, job_id, JobState.DONE)
    seen += watch(service, job_id, after=seen[-1].id)
    numbers = [event.json()["number"] for event in seen if event.event == "note"]
    assert numbers == list(range(500))
    assert seen[-1].json()["state"] == "done"


def test_a_finished_job_without_more_events_is_no_content(service: Service) -> None:
    job_id = service.submit()
    advance(service, job_id, JobState.DONE)
    last = list(watch(service, job_id))[-1].id
    answer = service.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    assert answer.status_code == 204


@pytest.mark.parametrize("given", ["abc", "-1", str(2**70)])
def test_an_invalid_last_event_id_is_refused(service: Service, given: str) -> None:
    job_id = service.submit()
    answer = service.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": given})
    assert answer.status_code == 422


def test_a_watcher_that_leaves_does_no_harm(service: Service) -> None:
    job_id = service.submit()
    for _ in range(20):
        with (
            pytest.raises(httpx.ReadTimeout),
            service.http.stream(
                "GET", f"/v1/jobs/{job_id}/events", timeout=0.1, headers={"Last-Event-ID": "1000"}
            ) as answer,
        ):
            list(answer.iter_bytes())
    assert service.http.get("/readyz").is_success
