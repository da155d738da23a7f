"""Cache the finished trials of jobs. They never change, so a round reads only those that weren't finished
before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cachetools import LRUCache
from sqlalchemy.orm import Session

from records.jobs import trials
from records.jobs.trials import Trial

# The most cached trials. Each has a trace of a few kilobytes, which records of the same trace have, too.
MAX_TRIALS = 30_000


@dataclass
class _Entry:
    """A job's finished trials, oldest first. They include all its trials up to the id `complete_to`."""

    finished: list[Trial] = field(default_factory=list)
    complete_to: int = 0

    def __len__(self) -> int:
        """An entry without trials takes memory, too."""
        return max(len(self.finished), 1)


class TrialCache:
    """The finished trials of the jobs that were planned last."""

    def __init__(self, max_trials: int = MAX_TRIALS) -> None:
        self._entries: LRUCache[str, _Entry] = LRUCache(max_trials, getsizeof=len)

    def by_task(self, session: Session, job_ids: Sequence[str]) -> dict[int, list[Trial]]:
        """Return all trials of some jobs by the task's id, oldest first; tasks without a trial are left
        out.
        """
        found: defaultdict[int, list[Trial]] = defaultdict(list)
        for job_id in dict.fromkeys(job_ids):
            # Remove the entry, because its size changes.
            entry = self._entries.pop(job_id, _Entry())
            later = trials.of_job(session, job_id, entry.complete_to)
            for trial in (*entry.finished, *later):
                found[trial.task_id].append(trial)
            for trial in later:
                if trial.state != "done":
                    break
                entry.finished.append(trial)
                entry.complete_to = trial.id
            with suppress(ValueError):  # a single job with more trials than the cache holds
                self._entries[job_id] = entry
        return dict(found)
