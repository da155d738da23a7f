"""What a job's events say about its steps: how many rounds it had, and what was begun and never finished.

An attempt is noted before heavy work starts, so that also work which takes the whole process down (a fault
in native code) is counted and, in the end, given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from records.jobs import events, jobs
from records.jobs.events import Event
from records.jobs.jobs import Job
from scheduler.errors import PermanentError

ATTEMPT = "attempt"
ROUND = "round"
FIRST_DELAY_S = 5.0


@dataclass(frozen=True)
class Attempts:
    """`attempts` begun in a row without anything achieved, the last at `attempted_at`; finished `rounds`."""

    attempts: int
    attempted_at: float
    rounds: int

    @property
    def retry_at(self) -> float:
        """Epoch seconds: the first retry comes at once, each further one after twice the time."""
        return self.attempted_at + FIRST_DELAY_S * (2 ** max(self.attempts - 1, 0) - 1)


def read(session: Session, job_id: str) -> Attempts:
    history = events.since(session, job_id, 0)
    failed = _trailing_attempts(history)
    return Attempts(
        attempts=len(failed),
        attempted_at=failed[-1].at if failed else 0.0,
        rounds=sum(event.kind == ROUND for event in history),
    )


def begin(session: Session, job: Job, step: str, now: float, max_attempts: int) -> bool:
    """Note that heavy work begins; False when it is too early to try again.

    Raises PermanentError when it was tried `max_attempts` times in vain.
    """
    journal = read(session, job.id)
    if journal.attempts >= max_attempts:
        cause = job.message.rstrip(".") or "the scheduler's process died"
        raise PermanentError(f"gave up after {journal.attempts} attempts: {cause}")
    if now < journal.retry_at:
        return False
    events.append(session, job.id, ATTEMPT, {"step": step}, now)
    jobs.set_message(session, job.id, f"{step}, attempt {journal.attempts + 1}" if journal.attempts else step)
    return True


def _trailing_attempts(history: Sequence[Event]) -> list[Event]:
    trailing: list[Event] = []
    for event in reversed(history):
        if event.kind != ATTEMPT:
            break
        trailing.insert(0, event)
    return trailing
