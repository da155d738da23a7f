"""Remarks and progress on standard error, which `--quiet` leaves out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from rich.console import Console

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_OPTION = typer.Option("--quiet", "-q", help="Print only results and errors.")


def remarks() -> Console:
    """Return a console for standard error that prints nothing in a quiet command."""
    return Console(stderr=True, quiet=_quiet.get())


def say(line: str) -> None:
    """Print a line on standard error; standard output is for results."""
    remarks().print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def with_quiet(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command the flag `--quiet`."""
    signature = inspect.signature(command, eval_str=True)
    flag = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, _OPTION]
    )

    @functools.wraps(command)
    def with_flag(**arguments: Any) -> object:
        before = _quiet.set(arguments.pop("quiet"))
        try:
            return command(**arguments)
        finally:
            _quiet.reset(before)

    parameters = [*signature.parameters.values(), flag]
    with_flag.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flag.__annotations__ = {one.name: one.annotation for one in parameters}
    del with_flag.__wrapped__
    return with_flag
