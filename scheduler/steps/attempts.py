"""Retry a job's failed steps with exponential backoff, up to a limit.

An attempt is stored as an event before the heavy work begins, so it counts even if a fault in native code
kills the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from sqlalchemy.orm import Session

from records.jobs import events, jobs
from records.jobs.jobs import Job
from scheduler.errors import PermanentError

# The kind of event.
ATTEMPT = "attempt"
FIRST_DELAY_S = 5.0


@dataclass(frozen=True)
class Attempts:
    """The number of attempts in a row without progress, and the epoch seconds at which the last one began."""

    count: int
    last_at: float

    @property
    def retry_at(self) -> float:
        """The time of the next attempt in epoch seconds. The first retry is immediate; each later delay
        doubles.
        """
        return self.last_at + FIRST_DELAY_S * (2 ** max(self.count - 1, 0) - 1)


def read(session: Session, job_id: str, limit: int) -> Attempts:
    """Return the attempts since the last progress, at most `limit`."""
    newest_first = events.latest(session, job_id, limit)
    failed = list(takewhile(lambda event: event.kind == ATTEMPT, newest_first))
    return Attempts(len(failed), failed[0].at if failed else 0.0)


def count_failure(session: Session, job_id: str, step: str, newest_id: int, now: float, limit: int) -> int:
    """Count a failure of a step that began when `newest_id` was the job's newest event; return the attempts.

    If the step itself counted the attempt, don't count it again. Counts at most `limit`.
    """
    newest = events.latest(session, job_id, 1)
    if not newest or newest[0].kind != ATTEMPT or newest[0].id <= newest_id:
        events.append(session, job_id, ATTEMPT, {"step": step}, now)
    return read(session, job_id, limit).count


def begin(session: Session, job: Job, step: str, now: float, max_attempts: int) -> bool:
    """Store the beginning of an attempt; return False if it is too early for a retry. Raises PermanentError
    after `max_attempts` attempts without progress.
    """
    failed = read(session, job.id, max_attempts)
    if failed.count >= max_attempts:
        cause = job.message.rstrip(".") or "the scheduler's process died"
        raise PermanentError(f"gave up after {failed.count} attempts: {cause}")
    # An attempt in the future means that the clock was set back.
    if failed.last_at <= now < failed.retry_at:
        return False
    events.append(session, job.id, ATTEMPT, {"step": step}, now)
    jobs.set_message(session, job.id, f"{step}, attempt {failed.count + 1}" if failed.count else step)
    return True
