"""Webhook messages are stored in the transaction of their event, claimed once, retried, and limited."""

from __future__ import annotations

import json

import pytest
from sqlalchemy.orm import Session

from core.job import JobState
from core.webhook import MAX_WEBHOOKS, WebhookEvent
from records import webhooks
from records.jobs import jobs
from records.webhooks import DELAYS_S, MAX_ATTEMPTS, TooManyWebhooks, Webhook, WebhookNotFound
from tests.unit.records.farm import Farm


def hook(name: str, *events: WebhookEvent) -> Webhook:
    return Webhook(name, "https://example.com", events or tuple(WebhookEvent), "whsec_c2VjcmV0", 1.0)


def test_subscribed_webhooks_are_notified_when_a_job_ends(farm: Farm, session: Session) -> None:
    webhooks.add(session, hook("all"))
    webhooks.add(session, hook("others", WebhookEvent.ARTIFACT_FASTER))
    jobs.advance(session, "job", {JobState.TUNING}, JobState.PUBLISHING, 40.0)
    assert webhooks.due(session, 99.0, 10) == []
    jobs.advance(session, "job", {JobState.PUBLISHING}, JobState.FAILED, 41.0, error="e" * 10_000)
    (delivery_id,) = webhooks.due(session, 41.0, 10)
    assert webhooks.due(session, 40.9, 10) == []
    delivery = webhooks.begin_attempt(session, delivery_id, 41.0)
    assert delivery is not None
    body = json.loads(delivery.body)
    assert (body["type"], body["timestamp"]) == ("job.finished", "1970-01-01T00:00:41+00:00")
    assert (body["data"]["job"], body["data"]["state"]) == ("job", "failed")
    assert len(body["data"]["error"]) == webhooks.MAX_TEXT_CHARS
    assert webhooks.deliveries(session, "others", 10) == []


def test_an_attempt_is_claimed_once_and_repeated_with_growing_delay(session: Session) -> None:
    webhooks.add(session, hook("all"))
    webhooks.emit(session, WebhookEvent.JOB_FINISHED, {"job": "1"}, 0.0)
    (delivery_id,) = webhooks.due(session, 0.0, 10)
    now, ids = 0.0, set()
    for number in range(MAX_ATTEMPTS):
        delivery = webhooks.begin_attempt(session, delivery_id, now)
        assert delivery is not None
        ids.add(delivery.message_id)
        assert webhooks.begin_attempt(session, delivery_id, now) is None
        webhooks.end_attempt(session, delivery, 500, "it answered 500", now)
        (listed,) = webhooks.deliveries(session, "all", 10)
        assert (listed.attempts, listed.status, listed.error) == (number + 1, 500, "it answered 500")
        if number < len(DELAYS_S):
            assert listed.due_at == now + DELAYS_S[number]
            assert webhooks.begin_attempt(session, delivery_id, listed.due_at - 0.1) is None
            now = listed.due_at
    assert (listed.state, listed.due_at) == ("failed", None)
    assert webhooks.due(session, 1e12, 10) == []
    assert len(ids) == 1


def test_a_killed_delivery_attempt_is_repeated_and_its_late_end_ignored(session: Session) -> None:
    webhooks.add(session, hook("all"))
    webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, 0.0)
    (delivery_id,) = webhooks.due(session, 0.0, 10)
    lost = webhooks.begin_attempt(session, delivery_id, 0.0)
    assert webhooks.due(session, webhooks.ATTEMPT_S - 1, 10) == []
    again = webhooks.begin_attempt(session, delivery_id, webhooks.ATTEMPT_S)
    assert lost is not None
    assert again is not None
    webhooks.end_attempt(session, lost, 500, "late", 61.0)
    webhooks.end_attempt(session, again, 204, "", 62.0)
    (listed,) = webhooks.deliveries(session, "all", 10)
    assert (listed.state, listed.status, listed.error, listed.attempts) == ("delivered", 204, "", 2)
    webhooks.end_attempt(session, lost, 500, "late", 63.0)
    assert webhooks.deliveries(session, "all", 10)[0].state == "delivered"


def test_webhooks_and_their_messages_are_bounded(session: Session) -> None:
    for number in range(MAX_WEBHOOKS):
        webhooks.add(session, hook(str(number)))
    with pytest.raises(TooManyWebhooks, match="delete one first"):
        webhooks.add(session, hook("one more"))
    webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, 0.0)
    assert len(webhooks.due(session, 0.0, 7)) == 7
    for delivery_id in webhooks.due(session, 0.0, 100)[:3]:
        delivery = webhooks.begin_attempt(session, delivery_id, 0.0)
        assert delivery is not None
        webhooks.end_attempt(session, delivery, 200, "", 0.0)
    assert [webhooks.prune(session, 0.5, 2), webhooks.prune(session, 0.5, 2)] == [2, 1]
    assert webhooks.prune(session, 0.5, 2) == 0  # the others are pending


def test_deleting_a_webhook_deletes_its_messages(session: Session) -> None:
    webhooks.add(session, hook("all"))
    webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, 0.0)
    webhooks.drop(session, "all")
    assert webhooks.due(session, 0.0, 10) == []
    for call in (webhooks.drop, lambda session, name: webhooks.deliveries(session, name, 1)):
        with pytest.raises(WebhookNotFound, match="there is no webhook 'all'"):
            call(session, "all")
