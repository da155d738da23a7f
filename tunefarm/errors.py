"""Errors of the command and the client library, each with one sentence for the user."""

from __future__ import annotations

from core.exit_code import ExitCode
from system.command import CommandError


class StackError(CommandError):
    """The embedded stack could not start, or stopped unexpectedly."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.LOCAL)


class InputError(CommandError):
    """A file of the user can't be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.BAD_INPUT)
