"""The attempts at a job's steps that came to nothing: retried later and later, and given up in the end.

An attempt is stored as an event before the heavy work begins, so a fault that kills the whole process (in
native code, say) is counted too.
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
        """Epoch seconds: the first retry comes at once, each further one after twice the time."""
        return self.last_at + FIRST_DELAY_S * (2 ** max(self.count - 1, 0) - 1)


def read(session: Session, job_id: str) -> Attempts:
    newest_first = reversed(events.since(session, job_id, 0))
    failed = list(takewhile(lambda event: event.kind == ATTEMPT, newest_first))
    return Attempts(len(failed), failed[0].at if failed else 0.0)


def begin(session: Session, job: Job, step: str, now: float, max_attempts: int) -> bool:
    """Store that an attempt begins; False when it is too early to try again.

    Raises PermanentError after `max_attempts` attempts without progress.
    """
    failed = read(session, job.id)
    if failed.count >= max_attempts:
        cause = job.message.rstrip(".") or "the scheduler's process died"
        raise PermanentError(f"gave up after {failed.count} attempts: {cause}")
    if now < failed.retry_at:
        return False
    events.append(session, job.id, ATTEMPT, {"step": step}, now)
    jobs.set_message(session, job.id, f"{step}, attempt {failed.count + 1}" if failed.count else step)
    return True
