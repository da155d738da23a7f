"""Failures a person meets at the command line, and the exit codes that scripts can rely on."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What `tunefarm` exits with. These numbers are part of its interface: they never change meaning."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    BAD_INPUT = 3
    UNREACHABLE = 4
    REFUSED = 5
    JOB_FAILED = 6
    JOB_CANCELLED = 7
    LOCAL = 8
    INTERRUPTED = 130


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
