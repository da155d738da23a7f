"""Run Typer commands. Each failure becomes one line on standard error and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer
from typer.main import get_command

from core.exit_code import ExitCode
from system.errors import SettingsError


class CommandError(Exception):
    """A failure that a command reports: one sentence that names the cause and the next step."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


def run_function(function: Callable[..., object], name: str, arguments: Sequence[str]) -> int:
    """Run a function as a command whose options are the function's parameters. Return the exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["--help", "-h"]})(function)
    return run_command(app, name, arguments)


def run_command(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Run a Typer app and return its exit code. `name` is the typed command, such as `tunefarm worker`.

    Report CommandError, SettingsError, wrong usage and Ctrl-C. Leave other exceptions to the caller.
    """
    try:
        result = get_command(app).main(args=list(arguments), prog_name=name, standalone_mode=False)
    except CommandError as error:
        return report(name, str(error), error.code)
    except SettingsError as error:
        return report(name, str(error), ExitCode.USAGE)
    except typer.TyperException as error:
        message = error.format_message().replace("Value error, ", "")  # added by pydantic
        # Wrong usage of a subcommand names it, as in `tunefarm tune --help`.
        context = getattr(error, "ctx", None)
        path = name if context is None else context.command_path
        return report(name, f"{message} (see {path} --help)", ExitCode.USAGE)
    except typer.Abort:
        return report(name, "interrupted", ExitCode.INTERRUPTED)
    if result == ExitCode.INTERRUPTED:  # Typer raises this on Ctrl-C
        return report(name, "interrupted", ExitCode.INTERRUPTED)
    return result if isinstance(result, int) else ExitCode.OK


def report(name: str, message: str, code: ExitCode) -> ExitCode:
    """Print the message as one line on standard error, and return the exit code."""
    print(f"{name}: " + " ".join(message.split()), file=sys.stderr)
    return code
