"""Turns whatever stops a `tunefarm` command into one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from core.exit_code import ExitCode
from system.command import report, run_command
from tunefarm.client.client import ClientError, ProblemError, UnreachableError

NAME = "tunefarm"
BAD_INPUT_STATUSES = (400, 413, 415, 422)


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
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the program that read the output has ended
        return ExitCode.OK
    except Exception as error:
        if os.environ.get("TUNEFARM_DEBUG"):
            raise
        hint = "set TUNEFARM_DEBUG=1 for the traceback and report it"
        return report(NAME, f"unexpected {type(error).__name__}: {error} ({hint})", ExitCode.UNEXPECTED)
