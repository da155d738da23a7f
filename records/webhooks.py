"""Webhooks and their deliveries, which are stored in the transaction of their event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from core.webhook import MAX_WEBHOOKS, WebhookEvent
from records.storage.database import NotFound
from records.storage.ids import only_id
from records.storage.statements import changed
from records.storage.tables import DeliveryRow, WebhookRow

# Seconds before the next attempt, after each failed one.
DELAYS_S = (5.0, 30.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0)
MAX_ATTEMPTS = len(DELAYS_S) + 1
# An attempt whose scheduler was killed is repeated after this time.
ATTEMPT_S = 60.0
MAX_TEXT_CHARS = 2000

DeliveryState = Literal["pending", "delivered", "failed"]


class WebhookNotFound(NotFound):
    """No webhook has this id."""


class TooManyWebhooks(Exception):
    """The service has the largest allowed number of webhooks."""


@dataclass(frozen=True)
class Webhook:
    """An address that gets messages about events. Messages are signed with its `secret`."""

    id: str
    url: str
    events: tuple[WebhookEvent, ...]
    secret: str
    created_at: float


@dataclass(frozen=True)
class Delivery:
    """A message for a webhook. `due_at` is when the next attempt begins, None after the last one.

    `status` is the HTTP status of the last attempt, `error` why it failed.
    """

    id: int
    webhook: Webhook
    event: WebhookEvent
    body: str
    state: DeliveryState
    attempts: int
    created_at: float
    due_at: float | None
    status: int | None
    error: str

    @property
    def message_id(self) -> str:
        """An id that is the same for all attempts, so that receivers can drop repeated messages."""
        return f"{self.webhook.id}-{self.id}"


def add(session: Session, webhook: Webhook) -> None:
    """Store a new webhook. Raises TooManyWebhooks."""
    if (session.scalar(select(func.count()).select_from(WebhookRow)) or 0) >= MAX_WEBHOOKS:
        raise TooManyWebhooks(f"a service has at most {MAX_WEBHOOKS} webhooks: delete one first")
    session.execute(insert(WebhookRow).values({**vars(webhook), "events": list(webhook.events)}))


def webhooks(session: Session) -> list[Webhook]:
    """Return all webhooks, oldest first."""
    return [_webhook(row) for row in session.scalars(select(WebhookRow).order_by(WebhookRow.created_at))]


def full_id(session: Session, start: str) -> str:
    """Return the only id that begins with `start`, or `start` if none does. Raises WebhookNotFound if several
    do."""
    return only_id(session, WebhookRow.id, start, WebhookNotFound)


def drop(session: Session, webhook_id: str) -> None:
    """Delete a webhook with its deliveries. Raises WebhookNotFound."""
    # The lock waits for transactions that store a message for it. Later ones don't find it.
    session.execute(select(WebhookRow.id).where(WebhookRow.id == webhook_id).with_for_update())
    session.execute(delete(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id))
    if not changed(session, delete(WebhookRow).where(WebhookRow.id == webhook_id)):
        raise WebhookNotFound(f"there is no webhook {webhook_id!r}")


def emit(session: Session, event: WebhookEvent, data: Mapping[str, Any], now: float) -> None:
    """Store a message for each webhook that subscribes to this event. Long texts are cut off."""
    # The lock keeps them from being deleted meanwhile.
    kept = select(WebhookRow).order_by(WebhookRow.id).with_for_update(read=True, key_share=True)
    wanted = [webhook for webhook in map(_webhook, session.scalars(kept)) if event in webhook.events]
    if not wanted:
        return
    short = {
        name: value[:MAX_TEXT_CHARS] if isinstance(value, str) else value for name, value in data.items()
    }
    at = datetime.fromtimestamp(now, UTC).isoformat()
    body = json.dumps({"type": event, "timestamp": at, "data": short})
    message = {"event": event, "body": body, "state": "pending", "attempts": 0, "error": ""}
    rows = [message | {"webhook_id": one.id, "created_at": now, "due_at": now} for one in wanted]
    session.execute(insert(DeliveryRow), rows)


def due(session: Session, now: float, limit: int) -> list[int]:
    """Return the ids of deliveries whose next attempt is due, the longest waiting first."""
    query = select(DeliveryRow.id).where(DeliveryRow.state == "pending", DeliveryRow.due_at <= now)
    return list(session.scalars(query.order_by(DeliveryRow.due_at).limit(limit)))


def begin_attempt(session: Session, delivery_id: int, now: float) -> Delivery | None:
    """Claim a delivery for an attempt, and count the attempt. Return None if it isn't due."""
    is_due = (DeliveryRow.id == delivery_id, DeliveryRow.state == "pending", DeliveryRow.due_at <= now)
    claimed = update(DeliveryRow).where(*is_due)
    claimed = claimed.values(attempts=DeliveryRow.attempts + 1, due_at=now + ATTEMPT_S)
    if not changed(session, claimed):
        return None
    found = _deliveries(session, DeliveryRow.id == delivery_id, 1)
    return found[0] if found else None


def end_attempt(session: Session, delivery: Delivery, status: int | None, error: str, now: float) -> None:
    """Store how an attempt ended. After an `error`, the next attempt is due later, unless this was the
    last."""
    state: DeliveryState = "pending"
    if not error or delivery.attempts >= MAX_ATTEMPTS:
        state = "failed" if error else "delivered"
    due_at = now + DELAYS_S[delivery.attempts - 1] if state == "pending" else None
    of_attempt = (DeliveryRow.id == delivery.id, DeliveryRow.attempts == delivery.attempts)
    ended = update(DeliveryRow).where(*of_attempt, DeliveryRow.state == "pending")
    session.execute(ended.values(state=state, due_at=due_at, status=status, error=error[:MAX_TEXT_CHARS]))


def deliveries(session: Session, webhook_id: str, limit: int) -> list[Delivery]:
    """Return the last deliveries of a webhook, newest first. Raises WebhookNotFound."""
    if session.get(WebhookRow, webhook_id) is None:
        raise WebhookNotFound(f"there is no webhook {webhook_id!r}")
    return _deliveries(session, DeliveryRow.webhook_id == webhook_id, limit)


def prune(session: Session, before: float, limit: int) -> int:
    """Delete up to `limit` finished deliveries that were stored before a time. Return their number."""
    ended = (DeliveryRow.state != "pending", DeliveryRow.created_at < before)
    some = select(DeliveryRow.id).where(*ended).order_by(DeliveryRow.id).limit(limit)
    return changed(session, delete(DeliveryRow).where(DeliveryRow.id.in_(some)))


def _deliveries(session: Session, condition: Any, limit: int) -> list[Delivery]:
    query = select(DeliveryRow, WebhookRow).join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
    rows = session.execute(query.where(condition).order_by(DeliveryRow.id.desc()).limit(limit)).all()
    return [
        Delivery(
            id=row.id,
            webhook=_webhook(webhook),
            event=WebhookEvent(row.event),
            body=row.body,
            state=cast("DeliveryState", row.state),
            attempts=row.attempts,
            created_at=row.created_at,
            due_at=row.due_at,
            status=row.status,
            error=row.error,
        )
        for row, webhook in rows
    ]


def _webhook(row: WebhookRow) -> Webhook:
    return Webhook(row.id, row.url, tuple(map(WebhookEvent, row.events)), row.secret, row.created_at)
