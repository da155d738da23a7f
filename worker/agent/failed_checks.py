"""Why this device can't measure: how its checks failed, in a line for people; when it is checked again."""

from __future__ import annotations

import logging
import re
import signal
from dataclasses import dataclass

from core.worker import MAX_TROUBLE_CHARS
from worker.sandbox.child_process import ChildDied, signal_name

_log = logging.getLogger(__name__)

# So many checks that fail alike are no accident; nor are so many in a row that don't.
_ALIKE, _IN_A_ROW = 3, 6
# Leaves room for the next step.
_MAX_CAUSE_CHARS = MAX_TROUBLE_CHARS - 200
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)\b")

_NEXT_STEPS = {
    "SIGILL": "leave out what the processor lacks with --features or TUNEFARM_WORKER_FEATURES, and report it",
    "SIGKILL": "the system may be short of memory, see its log",
    "ImportError": "install tunefarm[worker] again",
    "ModuleNotFoundError": "install tunefarm[worker] again",
}


@dataclass(frozen=True)
class End:
    """How a check failed. Ends of one `kind` are alike; `line` names the cause, and the next step if it is
    known. It is printable, and short enough to travel."""

    kind: str
    line: str


class ChildStartError(Exception):
    """No child comes up and passes its check: this device can't measure at the moment."""

    def __init__(self, end: End, words: str = "") -> None:
        """`words` are what the child wrote on standard error."""
        super().__init__(f"{end.line}\n{words}".strip())
        self.end = end


def ended(kind: str, cause: str, next_step: str | None = None) -> End:
    """The cause may be of several lines and of any length."""
    line = "".join(filter(str.isprintable, " ".join(cause.split())))
    if len(line) > _MAX_CAUSE_CHARS:
        line = line[: _MAX_CAUSE_CHARS - 3] + "..."
    return End(kind, f"{line}: {next_step}" if next_step else line)


def timed_out(allowed_s: float) -> End:
    more = "if the device is only slow, allow more with TUNEFARM_WORKER_START_TIMEOUT_S"
    return ended("timeout", f"its check took longer than {allowed_s:g} s", more)


def died(how: ChildDied, words: str) -> End:
    """By what the child wrote before, where its exit code alone says little."""
    if how.code is None:
        return ended("silence", f"its check failed because {how}")
    if how.code < 0:
        name = signal_name(-how.code)
        meaning = signal.strsignal(-how.code) if -how.code in signal.valid_signals() else None
        cause = f"its check was ended by {name}" + (f" ({meaning.lower()})" if meaning else "")
        return ended(name, cause, _NEXT_STEPS.get(name))
    line = _last_line(words)
    if found := _EXCEPTION.match(line):
        return ended(found[0], f"its check ended with {line}", _NEXT_STEPS.get(found[0]))
    return ended(f"code {how.code}", f"its check exited with code {how.code}" + (f": {line}" if line else ""))


def _last_line(words: str) -> str:
    """Of a traceback, the line that names the exception: its message may go on below."""
    _, is_traceback, after = words.rpartition(_TRACEBACK)
    lines = [line for line in after.splitlines() if line.strip()]
    if is_traceback:
        return next((line for line in lines if not line[0].isspace()), "")
    return lines[-1].strip() if lines else ""


class FailedChecks:
    """The checks that have failed since the last one that passed.

    The first ones are repeated soon, since some causes pass. Once it is clear that this one doesn't, people
    are told what the `trouble` is, and the device is checked every `again_max_s` seconds.
    """

    def __init__(self, again_max_s: float) -> None:
        self._again_max_s = again_max_s
        self.passed()

    def passed(self) -> None:
        """The device can measure."""
        self._last: End | None = None
        self._in_a_row = self._alike = 0
        self._kinds: set[str] = set()
        self._is_lasting = False

    def failed(self, error: ChildStartError) -> None:
        """Logs the first end of each kind whole, and otherwise every 1st, 2nd, 4th, 8th... in one line."""
        self._in_a_row += 1
        self._alike = self._alike + 1 if self._last and self._last.kind == error.end.kind else 1
        self._last = error.end
        self._is_lasting |= self._alike >= _ALIKE or self._in_a_row >= _IN_A_ROW
        is_news = error.end.kind not in self._kinds
        self._kinds.add(error.end.kind)
        if is_news or self._in_a_row & (self._in_a_row - 1) == 0:
            count = f"{self._in_a_row} in a row, the next check is in {self.pause_s:g} s"
            told = str(error) if is_news else error.end.line
            _log.error("this device can't measure yet (%s): %s", count, told)

    @property
    def trouble(self) -> str:
        """Why the device can't measure, in one line; empty while that may still pass."""
        return self._last.line if self._last is not None and self._is_lasting else ""

    @property
    def pause_s(self) -> float:
        """Until the next check."""
        soon_s = 2.0 ** (self._in_a_row - 1)
        return self._again_max_s if self._is_lasting else min(soon_s, self._again_max_s)
