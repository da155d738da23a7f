"""Count failed self-checks of this device. Decide when to check again, and when to report the failure."""

from __future__ import annotations

import logging

from worker.runner.start_failure import ChildStartError, StartFailure

_log = logging.getLogger(__name__)

# A failure is reported after this many in a row of one kind, or after this many in a row of any kinds.
_SAME_KIND, _ANY_KIND = 3, 6


class FailedChecks:
    """The failed self-checks since the last one that passed.

    At first, checks are repeated soon, because some causes go away. Once the cause seems permanent,
    `health_error` contains it, and the device is checked every `max_pause_s` seconds.
    """

    def __init__(self, max_pause_s: float) -> None:
        self._max_pause_s = max_pause_s
        self.passed()

    def passed(self) -> None:
        """Forget all failures: the device can measure."""
        self._last: StartFailure | None = None
        self._in_a_row = self._same_kind = 0
        self._kinds: set[str] = set()
        self._is_lasting = False

    def failed(self, error: ChildStartError) -> None:
        """Count a failure; log the first of each kind in full, and the 1st, 2nd, 4th, 8th... in one line."""
        failure = error.failure
        self._in_a_row += 1
        self._same_kind = self._same_kind + 1 if self._last and self._last.kind == failure.kind else 1
        self._last = failure
        self._is_lasting |= self._same_kind >= _SAME_KIND or self._in_a_row >= _ANY_KIND
        is_new = failure.kind not in self._kinds
        self._kinds.add(failure.kind)
        if is_new or self._in_a_row & (self._in_a_row - 1) == 0:
            count = f"{self._in_a_row} in a row, the next check is in {self.pause_s:g} s"
            text = str(error) if is_new else failure.line
            _log.error("this device can't measure yet (%s): %s", count, text)

    @property
    def health_error(self) -> str:
        """Why the device can't measure, in one line; empty while the cause may still go away."""
        return self._last.line if self._last is not None and self._is_lasting else ""

    @property
    def pause_s(self) -> float:
        """Seconds until the next check."""
        backoff_s = 2.0 ** (self._in_a_row - 1)
        return self._max_pause_s if self._is_lasting else min(backoff_s, self._max_pause_s)
