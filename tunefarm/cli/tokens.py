"""`tunefarm token`: make, list and revoke tokens."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from core.exit_code import ExitCode
from core.tokens import Scope
from system.command import CommandError
from tunefarm.cli.fitted import Column
from tunefarm.cli.options import (
    AsJson,
    Data,
    Server,
    Token,
    connected,
    print_list,
    print_one,
    print_secret,
    time_text,
)
from tunefarm.client.values import StoredToken

app = typer.Typer(help="Make, list and revoke the service's tokens.", rich_markup_mode=None)

COLUMNS = (
    Column("id", text=True),
    Column("name", text=True),
    Column("scopes", text=True),
    Column("state"),
    Column("created", rank=3),
    Column("expires", rank=1),
    Column("last used", rank=2),
)

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@app.command()
def create(
    name: Annotated[str, typer.Option(help="Who or what uses it; shown in lists.")],
    scope: Annotated[list[Scope], typer.Option(help="What it allows; may be repeated.")],
    expires: Annotated[str, typer.Option(metavar="90d", help="After 30m, 12h, 90d, 2w or never.")] = "90d",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is shown only once, because the service keeps only its digest."""
    expires_after_s = lifetime_s(expires)
    with connected(server, token, data) as service:
        made = service.client.create_token(name, scope, expires_after_s)
    line = f"token {made.id} for {made.name}: {', '.join(made.scopes)}; expires {_time(made.expires_at)}"
    print_secret(made, as_json, made.token, line)


@app.command("list")
def list_(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the tokens, newest first."""
    with connected(server, token, data) as service:
        stored = service.client.tokens()
    empty = "no token yet: make one with `tunefarm token create --name NAME --scope read`"
    print_list(stored, as_json, COLUMNS, _row, empty=empty)


@app.command()
def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="As `tunefarm token list` shows it, or the start of it.")
    ],
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token. Every server refuses it within a few seconds."""
    with connected(server, token, data) as service:
        revoked = service.client.revoke_token(token_id)
    print_one(revoked, as_json, f"token {revoked.id} ({revoked.name}) is revoked")


def lifetime_s(text: str) -> float | None:
    """Return the seconds of 30m, 12h, 90d or 2w, None for `never`. Raises CommandError for other texts."""
    if text == "never":
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})([mhdw])", text)
    if match is None:
        raise CommandError(f"--expires is 30m, 12h, 90d, 2w or never, not {text!r}", ExitCode.USAGE)
    return int(match[1]) * _UNITS_S[match[2]]


def _row(one: StoredToken) -> tuple[str, ...]:
    times = _time(one.created_at), _time(one.expires_at), _time(one.last_used_at)
    return one.id, one.name, " ".join(one.scopes), one.state, *times


def _time(at: float | None) -> str:
    return "never" if at is None else time_text(at)
