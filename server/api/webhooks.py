"""`/v1/webhooks`: addresses that get signed messages about events."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from core.webhook import MAX_URL_CHARS, SECRET_PREFIX, WebhookEvent, check_url
from records import webhooks
from records.webhooks import Delivery, TooManyWebhooks, Webhook
from server.api.fields import RequestBody
from server.api.ids import WebhookId
from server.context import ContextDep
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


def _checked(url: str) -> str:
    check_url(url)
    return url


Url = Annotated[str, Field(max_length=MAX_URL_CHARS), AfterValidator(_checked)]


class WebhookRequestBody(RequestBody):
    """The address to send messages to, and the events to send them for."""

    model_config = ConfigDict(strict=False)  # JSON has the event's name

    url: Url
    events: Annotated[list[WebhookEvent], FailFast()] = Field(min_length=1, max_length=len(WebhookEvent))


class WebhookBody(BaseModel):
    """A webhook without its secret; `created_at` is epoch seconds."""

    id: str
    url: str
    events: list[WebhookEvent]
    created_at: float


class NewWebhookBody(WebhookBody):
    """A new webhook. Its `secret`, which verifies the signatures of messages, is shown only here."""

    secret: str


class WebhooksBody(BaseModel):
    """Webhooks, oldest first."""

    items: list[WebhookBody]


class DeliveryBody(BaseModel):
    """A message for a webhook. `due_at` is when the next attempt begins, null after the last one.

    `status` is the HTTP status of the last attempt, `error` why it failed. Times are epoch seconds.
    """

    id: str
    event: WebhookEvent
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: float
    due_at: float | None
    status: int | None
    error: str
    body: str

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryBody:
        return cls(
            id=delivery.message_id,
            event=delivery.event,
            state=delivery.state,
            attempts=delivery.attempts,
            created_at=delivery.created_at,
            due_at=delivery.due_at,
            status=delivery.status,
            error=delivery.error,
            body=delivery.body,
        )


class DeliveriesBody(BaseModel):
    """Messages for a webhook, newest first."""

    items: list[DeliveryBody]


@router.post("", status_code=201, responses=problems(400, 409))
def create(body: WebhookRequestBody, request: Request, context: ContextDep) -> NewWebhookBody:
    """Create a webhook. Messages are signed as in Standard Webhooks, and retried for a day and a half."""
    secret = SECRET_PREFIX + base64.b64encode(context.new_secret().encode()).decode()
    events = tuple(dict.fromkeys(body.events))
    made = Webhook(context.new_id(), body.url, events, secret, context.now())
    with context.database.begin() as session:
        try:
            webhooks.add(session, made)
        except TooManyWebhooks as error:
            raise Problem(409, "too-many-webhooks", f"No webhook was made: {error}.") from error
    request.state.audited = made.id
    return NewWebhookBody.model_validate(vars(made) | {"events": list(events)})


@router.get("")
def show_all(context: ContextDep) -> WebhooksBody:
    """Return all webhooks, oldest first."""
    with context.database.reading() as session:
        found = webhooks.webhooks(session)
    fields = WebhookBody.model_fields
    return WebhooksBody(items=[WebhookBody(**{name: getattr(one, name) for name in fields}) for one in found])


@router.get("/{webhook_id}/deliveries", responses=problems(404))
def show_deliveries(
    webhook_id: WebhookId, context: ContextDep, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> DeliveriesBody:
    """Return the latest messages of a webhook, and whether they were delivered."""
    with context.database.reading() as session:
        found = webhooks.deliveries(session, webhook_id, limit)
    return DeliveriesBody(items=[DeliveryBody.of(one) for one in found])


@router.delete("/{webhook_id}", status_code=204, responses=problems(404))
def drop(webhook_id: WebhookId, context: ContextDep) -> None:
    """Delete a webhook with its messages."""
    with context.database.begin() as session:
        webhooks.drop(session, webhook_id)
