"""Diagnose a child that doesn't start: the cause and the next step, in one line for users."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from core.worker import MAX_HEALTH_ERROR_CHARS
from worker.runner.child_process import ChildDied, signal_name

# Leaves room for the next step.
_MAX_CAUSE_CHARS = MAX_HEALTH_ERROR_CHARS - 200
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)\b")

_NEXT_STEPS = {
    "SIGILL": "leave out what the processor lacks with --features or TUNEFARM_WORKER_FEATURES, and report it",
    "SIGKILL": "the system may be short of memory, see its log",
    "ImportError": "install tunefarm[worker] again",
    "ModuleNotFoundError": "install tunefarm[worker] again",
}


@dataclass(frozen=True)
class StartFailure:
    """Why a child didn't start or failed its self-check.

    Failures of one `kind` have the same cause. `line` names the cause and, if known, the next step. It is
    printable and has at most MAX_HEALTH_ERROR_CHARS characters.
    """

    kind: str
    line: str


class ChildStartError(Exception):
    """The child doesn't start or fails its self-check, so this device can't measure at the moment."""

    def __init__(self, failure: StartFailure, stderr: str = "") -> None:
        """`stderr` is the child's standard error."""
        super().__init__(f"{failure.line}\n{stderr}".strip())
        self.failure = failure


def start_failure(kind: str, cause: str, next_step: str | None = None) -> StartFailure:
    """Return a failure whose cause, of any number of lines, is shortened to one printable line."""
    line = "".join(filter(str.isprintable, " ".join(cause.split())))
    if len(line) > _MAX_CAUSE_CHARS:
        line = line[: _MAX_CAUSE_CHARS - 3] + "..."
    return StartFailure(kind, f"{line}: {next_step}" if next_step else line)


def timed_out(allowed_s: float) -> StartFailure:
    next_step = "if the device is only slow, allow more with TUNEFARM_WORKER_START_TIMEOUT_S"
    return start_failure("timeout", f"its check took longer than {allowed_s:g} s", next_step)


def died(death: ChildDied, stderr: str) -> StartFailure:
    """Return the failure of a dead child. It names the signal or the printed exception, because an exit code
    says little."""
    if death.code is None:
        return start_failure("silence", f"its check failed because {death}")
    if death.code < 0:
        name = signal_name(-death.code)
        meaning = signal.strsignal(-death.code) if -death.code in signal.valid_signals() else None
        cause = f"its check was ended by {name}" + (f" ({meaning.lower()})" if meaning else "")
        return start_failure(name, cause, _NEXT_STEPS.get(name))
    line = _last_line(stderr)
    if found := _EXCEPTION.match(line):
        return start_failure(found[0], f"its check ended with {line}", _NEXT_STEPS.get(found[0]))
    cause = f"its check exited with code {death.code}" + (f": {line}" if line else "")
    return start_failure(f"code {death.code}", cause)


def _last_line(stderr: str) -> str:
    """Return the last line, or the line after a traceback that names the exception, because its message may
    have more lines."""
    _, is_traceback, after = stderr.rpartition(_TRACEBACK)
    lines = [line for line in after.splitlines() if line.strip()]
    if is_traceback:
        return next((line for line in lines if not line[0].isspace()), "")
    return lines[-1].strip() if lines else ""
