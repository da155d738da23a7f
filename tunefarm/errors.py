"""Failures of the command and the client library that are reported in one sentence."""

from __future__ import annotations

from core.exit_code import ExitCode
from system.command import CommandError


class StackError(CommandError):
    """The embedded stack could not start, or stopped unexpectedly."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.LOCAL)


class InputError(CommandError):
    """A file that was handed in can't be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.BAD_INPUT)
