"""Failures that the command line reports in one sentence."""

from __future__ import annotations

from core.exit_code import ExitCode


class CommandError(Exception):
    """A failure with one clear sentence that names the cause and the next step."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class StackError(CommandError):
    """The embedded stack could not start, or stopped by itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.LOCAL)


class InputError(CommandError):
    """A file that was handed in can't be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.BAD_INPUT)
