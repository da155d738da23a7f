"""The trials that a job may still issue."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from records.jobs import tasks, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.jobs.trials import TrialCounts


@dataclass(frozen=True)
class RemainingBudget:
    """The part of a job's budget of trials that is left.

    trials   trials left of those that the job asked for
    issued   the trials issued so far, by state
    covered  the job's tasks that the search covers
    untried  those of them without any trial, and without a schedule that is known to run
    """

    trials: int
    issued: TrialCounts
    covered: tuple[Task, ...]
    untried: tuple[Task, ...]

    @property
    def issuable(self) -> int:
        """The number of trials that may be issued now.

        Each untried task gets one trial, the best guess, whatever the budget. Without it the task would keep
        its fallback schedule, because a schedule that no device has verified is never compiled in.
        """
        return max(self.trials, len(self.untried))

    @property
    def num_open(self) -> int:
        """The number of trials that are issued and not yet measured."""
        return self.issued.pending + self.issued.leased


def read_remaining(session: Session, job: Job) -> RemainingBudget:
    issued = trials.counts(session, job.id)
    tried = trials.issued_tasks(session, job.id)
    covered = tuple(task for task in tasks.for_job(session, job.id) if task.covered)
    return RemainingBudget(
        trials=max(job.request.budget.trials - issued.pending - issued.leased - issued.done, 0),
        issued=issued,
        covered=covered,
        untried=tuple(task for task in covered if task.best_s is None and task.id not in tried),
    )
