"""A job's state changes while a step works on the job."""

from __future__ import annotations

from typing import Any

import pytest

from core.job import JobState
from core.webhook import WebhookEvent
from records import webhooks
from records.jobs import events, jobs
from records.webhooks import Webhook
from scheduler.steps import publish
from tests.unit.scheduler.farm import FakeCompiler, Farm


def test_a_job_cancelled_while_its_model_is_imported_gets_no_tasks(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_model = compiler.import_model

    def cancel(*args: Any, **options: Any) -> Any:
        with farm.database.begin() as session:
            jobs.cancel(session, "job", farm.now)
        return import_model(*args, **options)

    monkeypatch.setattr(compiler, "import_model", cancel)
    farm.submit()
    farm.plug_in()
    farm.sweep()
    assert farm.job().state is JobState.CANCELLED
    assert farm.tasks() == []
    with farm.database.begin() as session:
        last = events.latest(session, "job", 1)[0]
    assert (last.kind, last.data["state"]) == (events.STATE, JobState.CANCELLED)


def test_a_job_that_two_schedulers_publish_is_published_once(farm: Farm) -> None:
    """The claim of the first one has lapsed while it was compiling."""
    with farm.database.begin() as session:
        hook = Webhook("hook", "https://example.com", tuple(WebhookEvent), "whsec_", farm.now)
        webhooks.add(session, hook)
    farm.submit()
    farm.plug_in()
    while not (runs := farm.runs()) or any(run.state != "done" for run in runs):
        farm.sweep()
        farm.work()
        farm.now += 5
    job = farm.job()
    assert job.state is JobState.PUBLISHING
    for _ in range(2):
        publish.run(farm.context, job)
    with farm.database.begin() as session:
        told = [one.event for one in webhooks.deliveries(session, "hook", 10)]
    assert sorted(told) == sorted(WebhookEvent)
    assert farm.job().artifact_version == 1
