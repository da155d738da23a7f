"""The `tunefarm` command: all its subcommands, and the exit codes of their failures."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from core.exit_code import ExitCode
from system.command import report, run_command
from tunefarm.cli import (
    compiled,
    cost_models,
    differences,
    doctor,
    infer,
    init,
    jobs,
    mcp_server,
    processes,
    releases,
    schedules,
    storage,
    tokens,
    top,
    tune,
    verify,
    webhooks,
    workers,
)
from tunefarm.cli.remarks import with_quiet
from tunefarm.client.client import ClientError, ProblemError, UnreachableError

NAME = "tunefarm"
BAD_INPUT_STATUSES = (400, 413, 415, 422)

app = typer.Typer(
    epilog="Also: init, top, mcp, diff, check, verify, infer, bundle, model, release, webhook, server, "
    "scheduler, backup, restore, delete, delete-imported, migrate, calibrate. docs/commands.md lists the "
    "exit codes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"{NAME} {importlib.metadata.version(NAME)}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Make a neural network run faster on the device that will run it."""


app.command()(tune.tune)
app.command("compile")(tune.compile_)
app.command()(processes.up)
app.command(context_settings=processes.PASS_ON, hidden=True)(processes.server)
app.command(context_settings=processes.PASS_ON, hidden=True)(processes.scheduler)
app.command(context_settings=processes.PASS_ON)(processes.worker)
app.command()(jobs.jobs)
app.command()(jobs.watch)
app.command(hidden=True)(top.top)
app.command()(jobs.cancel)
app.command()(jobs.report)
app.command(hidden=True)(jobs.delete)
app.command(hidden=True)(cost_models.model)
app.command(hidden=True)(differences.diff)
app.command(hidden=True)(differences.check)
app.command(hidden=True)(verify.verify)
app.command(hidden=True)(infer.infer)
app.command()(schedules.best)
app.command()(schedules.show)
app.command()(schedules.export)
app.command("import")(schedules.import_)
app.command(hidden=True)(schedules.delete_imported)
app.command("calibrate", hidden=True)(workers.calibrate)
app.command()(compiled.bench)
app.command(hidden=True)(compiled.bundle)
app.command()(doctor.doctor)
app.command(hidden=True)(init.init)
app.command(hidden=True)(mcp_server.mcp)
for storing in (storage.backup, storage.restore, storage.migrate):
    app.command(hidden=True)(storing)
app.add_typer(releases.app, name="release", hidden=True)
app.add_typer(tokens.app, name="token")
app.add_typer(webhooks.app, name="webhook", hidden=True)
app.add_typer(workers.app, name="workers")
for group in (app, releases.app, tokens.app, webhooks.app, workers.app):
    for command in group.registered_commands:
        if command.callback is not None and command.context_settings is not processes.PASS_ON:
            command.callback = with_quiet(command.callback)
listing = workers.app.registered_callback
if listing is not None and listing.callback is not None:
    listing.callback = with_quiet(listing.callback)


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; without arguments, print the help."""
    try:
        return run_command(app, NAME, arguments or ["--help"])
    except UnreachableError as error:
        message = f"{error}: start one with `tunefarm up`, or check --server"
        return report(NAME, message, ExitCode.UNREACHABLE)
    except ProblemError as error:
        is_bad_input = error.status in BAD_INPUT_STATUSES
        return report(NAME, str(error), ExitCode.BAD_INPUT if is_bad_input else ExitCode.REFUSED)
    except ClientError as error:
        return report(NAME, str(error), ExitCode.REFUSED)
    except SystemExit as ended:
        # The program that read the output has ended. Click reports that as a failure.
        if isinstance(ended.__context__, BrokenPipeError):
            return ExitCode.OK
        raise
    except Exception as error:
        if os.environ.get("TUNEFARM_DEBUG"):
            raise
        hint = "set TUNEFARM_DEBUG=1 for the traceback and report it"
        return report(NAME, f"unexpected {type(error).__name__}: {error} ({hint})", ExitCode.UNEXPECTED)


def main() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = run(app, sys.argv[1:])
    except KeyboardInterrupt:  # another one, while the first was handled
        code = report(NAME, "interrupted", ExitCode.INTERRUPTED)
    # From here on, an interruption ends the process at once, without a traceback of its last steps.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise Python would fail to flush it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
