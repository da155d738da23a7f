"""Exit codes of the `tunefarm` command and of the processes that it runs."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code and its meaning. The numbers are part of the interface: scripts rely on them."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    OK = 0, "done"
    UNEXPECTED = 1, "unexpected: a mistake in tunefarm"
    USAGE = 2, "wrong usage: a flag, a setting"
    BAD_INPUT = 3, "bad input: a file or a request that can't be used"
    UNREACHABLE = 4, "the service can't be reached"
    REFUSED = 5, "the service refused"
    JOB_FAILED = 6, "the job failed"
    JOB_CANCELLED = 7, "the job was cancelled"
    LOCAL = 8, "a local obstacle: a folder, a port, a database, a missing tool, a process that stops"
    FENCED = 9, "another worker uses this one's name"
    UPDATE = 10, "the service wants this worker updated before it is started again"
    REGRESSION = 11, "a model is slower than its baseline allows"
    INTERRUPTED = 130, "interrupted"
