"""What can be said of a job under way: how fast it goes, how long is left, what it will have gained."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from core.job import JobState
from tunefarm.client.values import Job, Task

WINDOW_S = 60.0


@dataclass
class Pace:
    """Trials a second over the last minute, from how many were done when."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now_s: float, trials_done: int) -> None:
        """`now_s` are seconds of any clock that never goes back."""
        self._samples.append((now_s, trials_done))
        while self._samples[0][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def trials_per_s(self) -> float | None:
        """None until a trial has been seen to finish."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None


def seconds_left(job: Job, trials_per_s: float | None, now: float) -> float | None:
    """Seconds of tuning left; `now` is the time since the epoch. None while nothing can be said."""
    if job.state is not JobState.TUNING:
        return None
    limits = []
    if trials_per_s:
        limits.append(max(0, job.trials - job.trials_done) / trials_per_s)
    if job.minutes is not None and job.started_at is not None:
        limits.append(max(0.0, job.minutes * 60 - (now - job.started_at)))
    return min(limits, default=None)


def network_s(tasks: Sequence[Task]) -> float | None:
    """The whole network's latency as the sum of its tasks'; None until every covered task has one."""
    covered = [task.network_s for task in tasks if task.covered]
    known = [secs for secs in covered if secs is not None]
    return sum(known) if known and len(known) == len(covered) else None


def share(task: Task, tasks: Sequence[Task]) -> float | None:
    """The task's part of the network's time, as far as that is known."""
    known = sum(other.network_s or 0.0 for other in tasks)
    return None if task.network_s is None else task.network_s / known


def by_time(tasks: Sequence[Task]) -> list[Task]:
    """Those that cost most first, then those not measured yet, then those that the search doesn't cover."""
    return sorted(tasks, key=lambda task: (not task.covered, -(task.network_s or 0.0), task.name))
