"""`tunefarm webhook`: addresses that the service tells of events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from core.webhook import WebhookEvent
from tunefarm.cli.options import (
    AsJson,
    Data,
    Server,
    Token,
    connected,
    print_json,
    print_plain,
    say,
    stdout,
    time_text,
)

app = typer.Typer(help="Let the service tell other programs of events.", rich_markup_mode=None)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="As `tunefarm webhook list` shows it.")]


@app.command()
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="It gets a POST request for each event.")],
    event: Annotated[list[WebhookEvent], typer.Option(help="The event to send; may be repeated.")],
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make a webhook. Its secret, which verifies messages, is shown this once."""
    with connected(server, token, data) as service:
        made = service.client.create_webhook(url, event)
    if as_json:
        print_json(asdict(made))
        return
    say(f"webhook {made.id} for {made.url}: {', '.join(made.events)}")
    say("copy its secret now, it isn't shown again:")
    print(made.secret)


@app.command("list")
def list_(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the webhooks, oldest first."""
    with connected(server, token, data) as service:
        found = service.client.webhooks()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    table = Table("id", "url", "events", "created", box=None, pad_edge=False)
    for one in found:
        table.add_row(one.id, one.url, " ".join(one.events), time_text(one.created_at))
    stdout().print(table)


@app.command()
def deliveries(
    webhook_id: WebhookId,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the last messages for a webhook, newest first, and what became of them."""
    with connected(server, token, data) as service:
        found = service.client.webhook_deliveries(webhook_id)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    table = Table("event", "state", "attempts", "created", "next attempt", "error", box=None, pad_edge=False)
    for one in found:
        due = "" if one.due_at is None else time_text(one.due_at)
        table.add_row(one.event, one.state, str(one.attempts), time_text(one.created_at), due, one.error)
    stdout().print(table)


@app.command()
def delete(webhook_id: WebhookId, server: Server = None, token: Token = None, data: Data = None) -> None:
    """Delete a webhook with its messages."""
    with connected(server, token, data) as service:
        service.client.delete_webhook(webhook_id)
    print_plain(f"webhook {webhook_id} is deleted")
