"""Turns whatever stops a command into one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from core.exit_code import ExitCode
from system.command import CommandError
from system.settings import SettingsError
from tunefarm.client.client import ClientError, ProblemError, UnreachableError


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; none at all is a question for help."""
    try:
        return _run(app, arguments or ["--help"])
    except CommandError as error:
        return _fail(str(error), error.code)
    except typer.TyperException as error:
        return _fail(f"{error.format_message()} (see tunefarm --help)", ExitCode.USAGE)
    except SettingsError as error:
        return _fail(str(error), ExitCode.USAGE)
    except UnreachableError as error:
        return _fail(f"{error}: start one with `tunefarm up`, or check --server", ExitCode.UNREACHABLE)
    except ProblemError as error:
        return _fail(
            str(error), ExitCode.BAD_INPUT if error.status in (400, 413, 415, 422) else ExitCode.REFUSED
        )
    except ClientError as error:
        return _fail(str(error), ExitCode.REFUSED)
    except typer.Abort:
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - whoever read our output is gone
        return ExitCode.OK
    except Exception as error:
        if os.environ.get("TUNEFARM_DEBUG"):
            raise
        hint = "set TUNEFARM_DEBUG=1 for the traceback and report it"
        return _fail(f"unexpected {type(error).__name__}: {error} ({hint})", ExitCode.UNEXPECTED)


def _run(app: typer.Typer, arguments: Sequence[str]) -> int:
    result = get_command(app).main(args=list(arguments), prog_name="tunefarm", standalone_mode=False)
    if result == ExitCode.INTERRUPTED:  # what typer makes of Ctrl-C
        return _fail("interrupted", ExitCode.INTERRUPTED)
    return result if isinstance(result, int) else ExitCode.OK


def _fail(message: str, code: ExitCode) -> int:
    print("tunefarm: " + " ".join(message.split()), file=sys.stderr)
    return code
