"""Metrics for Prometheus about the queue, results and cost models."""

from __future__ import annotations

from sqlalchemy import update

from core.job import JobState
from records.jobs import jobs
from records.schedules import cost_models
from records.schedules.cost_models import Version
from records.storage.tables import WorkerRow

from .conftest import Service, Worker


def scraped(service: Service) -> dict[str, float]:
    lines = service.http.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def test_tokens_that_expire_soon_are_counted(service: Service) -> None:
    for days in (13, 15):
        asked = {"name": "ci", "scopes": ["read"], "expires_after_s": days * 86400}
        assert service.http.post("/v1/tokens", json=asked).is_success
    assert scraped(service)["tunefarm_ending_tokens"] == 1


def test_metrics_describe_the_queue_results_and_models(service: Service, worker: Worker) -> None:
    worker.call()
    key = worker.device.key
    service.submit()
    tuned = service.submit()
    now = service.context.now()
    with service.database.begin() as session:
        jobs.set_device_class(session, tuned, key)
        jobs.advance(session, tuned, {JobState.QUEUED}, JobState.TUNING, now)
        jobs.count(session, tuned, issued=7, done=3)
        counts = {"trials_done": 5, "failures": 2, "failures_by_kind": {"run_error": 2}}
        session.execute(update(WorkerRow).values(counts))
        for records, learned in ((10, {"r2": 0.1}), (20, {"r2": 0.5, "pairwise": 0.9, "recall": None})):
            version = Version(key, records, now, now, 1.0, {"learned": learned})
            cost_models.add(session, version, b"model")
        cost_models.add(session, Version(key, 30, now, now, 1.0, None), b"not evaluated")
    found = scraped(service)
    assert (found['tunefarm_jobs{state="queued"}'], found['tunefarm_jobs{state="tuning"}']) == (1, 1)
    assert found['tunefarm_jobs{state="publishing"}'] == 0
    assert found['tunefarm_oldest_job_seconds{state="queued"}'] > 0
    assert found['tunefarm_oldest_job_seconds{state="publishing"}'] == 0
    of_class = f'device="{worker.device.name}",device_class="{key}"'
    assert found[f"tunefarm_open_trials{{{of_class}}}"] == 4
    measured = {
        kind: found[f'tunefarm_measured_trials{{{of_class},outcome="{kind}"}}']
        for kind in ("ok", "run_error")
    }
    assert measured == {"ok": 3, "run_error": 2}
    assert found[f"tunefarm_cost_model_records{{{of_class}}}"] == 20
    quality = {name: value for name, value in found.items() if name.startswith("tunefarm_cost_model_quality")}
    assert sorted(quality.values()) == [0.5, 0.9]
    with service.database.begin() as session:
        jobs.cancel(session, tuned, now)
    assert f"tunefarm_open_trials{{{of_class}}}" not in scraped(service)
