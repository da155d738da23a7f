"""Tables that stay up to date on a terminal until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.options import stdout

EVERY_S = 1.0

IsLive = Annotated[bool, typer.Option("--live", help="Keep the table up to date until Ctrl-C.")]


def show_live(
    draw: Callable[[], RenderableType],
    sleep: Callable[[float], None] = time.sleep,
    *,
    what: str = "--live",
    instead: str = "leave it out, or use --json",
) -> None:
    """Show what `draw` returns, again every second until Ctrl-C.

    Raises CommandError without a terminal, which `what` needs.
    """
    console = stdout()
    if not console.is_terminal:
        raise CommandError(f"{what} needs a terminal: {instead}", ExitCode.USAGE)
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(draw(), refresh=True)
            sleep(EVERY_S)
