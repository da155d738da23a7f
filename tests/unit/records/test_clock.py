"""The clock as schedulers have seen it, and times in the future after it was set back."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.webhook import WebhookEvent
from core.worker import WorkerState
from records import clock, webhooks
from records.clock import MAX_SKEW_S, ClockReading
from records.fleet import workers
from records.fleet.workers import WorkerSession
from records.jobs import jobs
from records.storage.tables import DeliveryRow, JobRow
from records.webhooks import DELAYS_S, Webhook
from tests.unit.records.farm import Farm

NOW = 1000.0
CLAIM_S = 60.0


def test_the_last_reading_since_a_boot_is_kept(session: Session) -> None:
    assert clock.read(session, "boot") is None
    for reading in (ClockReading(1.0), ClockReading(2.0, 5.0)):
        clock.write(session, "boot", reading)
        assert clock.read(session, "boot") == reading
    assert clock.read(session, "another") is None


def test_only_future_times_are_corrected(farm: Farm, session: Session) -> None:
    latest = NOW + MAX_SKEW_S
    webhooks.add(session, Webhook("hook", "https://example.com", tuple(WebhookEvent), "whsec_", NOW))
    webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, NOW)
    for late_s, is_replaced in ((0.0, False), (1.0, True)):
        workers.register(session, WorkerSession("w", "s", WorkerState.PROBING), latest + late_s)
        held = {"holder": "there", "held_until": latest + CLAIM_S + late_s, "started_at": latest + late_s}
        session.execute(update(JobRow).values(held))
        due_at = latest + webhooks.ATTEMPT_S + DELAYS_S[2] + late_s
        session.execute(update(DeliveryRow).values(attempts=3, due_at=due_at))
        clock.correct_future_times(session, NOW, CLAIM_S)
        assert workers.get(session, "w").last_seen_at == (NOW if is_replaced else latest + late_s)
        assert jobs.claim_job(session, farm.job_id, "here", NOW, CLAIM_S) == is_replaced
        assert jobs.get(session, farm.job_id).started_at == (NOW if is_replaced else latest + late_s)
        assert bool(webhooks.due(session, NOW, 10)) == is_replaced
