"""`tunefarm webhook`: addresses that the service sends events to."""

from __future__ import annotations

from typing import Annotated

import typer

from core.webhook import WebhookEvent
from tunefarm.cli.fitted import Column
from tunefarm.cli.options import (
    AsJson,
    Data,
    Server,
    Token,
    connected,
    print_fields,
    print_list,
    print_secret,
    time_text,
)
from tunefarm.client.values import StoredWebhook, WebhookDelivery

app = typer.Typer(help="Let the service send events to other programs.", rich_markup_mode=None)

COLUMNS = (
    Column("id", text=True),
    Column("url", text=True),
    Column("events", text=True),
    Column("created", rank=1),
)
DELIVERY_COLUMNS = (
    Column("event"),
    Column("state"),
    Column.number("attempts", rank=1),
    Column("created", rank=3),
    Column("next attempt", rank=2),
    Column("error", text=True),
)

WebhookId = Annotated[
    str, typer.Argument(metavar="ID", help="As `tunefarm webhook list` shows it, or the start of it.")
]


@app.command()
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="It gets a POST request for each event.")],
    event: Annotated[list[WebhookEvent], typer.Option(help="The event to send; may be repeated.")],
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook. Its secret, which verifies messages, is shown only once."""
    with connected(server, token, data) as service:
        made = service.client.create_webhook(url, event)
    line = f"the secret of webhook {made.id} for {made.url}: {', '.join(made.events)}"
    print_secret(made, as_json, made.secret, line)


@app.command("list")
def list_(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the webhooks, oldest first."""
    with connected(server, token, data) as service:
        found = service.client.webhooks()
    empty = "no webhook yet: make one with `tunefarm webhook create URL --event job.finished`"
    print_list(found, as_json, COLUMNS, _row, empty=empty)


@app.command()
def deliveries(
    webhook_id: WebhookId,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the last messages for a webhook, newest first."""
    with connected(server, token, data) as service:
        found = service.client.webhook_deliveries(webhook_id)
    empty = "no message yet: none of its events has occurred"
    print_list(found, as_json, DELIVERY_COLUMNS, _delivery_row, empty=empty)


@app.command()
def delete(
    webhook_id: WebhookId,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete a webhook with its messages."""
    with connected(server, token, data) as service:
        service.client.delete_webhook(webhook_id)
    print_fields({"id": webhook_id, "deleted": True}, as_json, f"webhook {webhook_id} is deleted")


def _row(one: StoredWebhook) -> tuple[str, ...]:
    return one.id, one.url, " ".join(one.events), time_text(one.created_at)


def _delivery_row(one: WebhookDelivery) -> tuple[str, ...]:
    due = "" if one.due_at is None else time_text(one.due_at)
    return one.event, one.state, str(one.attempts), time_text(one.created_at), due, one.error
