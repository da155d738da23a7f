"""The trials that a job or a group of jobs may still issue."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from sqlalchemy.orm import Session

from core.model_latency import base_workload
from records.jobs import trials
from records.jobs.tasks import Task
from records.jobs.trials import NewTrial, TrialCounts
from records.schedules import imports
from scheduler.planning.group import Group


@dataclass(frozen=True)
class RemainingBudget:
    """The rest of a job's budget of trials.

    trials    how many of the requested trials are left
    issued    the trials issued so far, by state
    tasks     the job's tasks
    imported  trials of imported schedules, which come before all others
    untried   tasks that have no schedule known to run, but one to try: an imported schedule, the best guess
              of the search, or the fallback schedule if the search doesn't cover the task
    failed    the model's subgraphs for which no tried schedule runs, except the fallback schedule
    """

    trials: int
    issued: TrialCounts
    tasks: tuple[Task, ...]
    imported: tuple[NewTrial, ...]
    untried: tuple[Task, ...]
    failed: tuple[Task, ...]

    @property
    def covered(self) -> tuple[Task, ...]:
        """The tasks that the search covers."""
        return tuple(task for task in self.tasks if task.covered)

    @property
    def issuable(self) -> int:
        """The number of trials that may be issued now.

        Each untried task gets one trial, whatever the budget. Without it the task would keep its fallback
        schedule, because a schedule that no device has verified is never compiled in.
        """
        return max(self.trials, len(self.untried))

    @property
    def num_open(self) -> int:
        """The number of issued trials that aren't measured yet."""
        return self.issued.pending + self.issued.leased


def read_remaining(session: Session, group: Group) -> RemainingBudget:
    """Read the rest of the budget that the jobs of a group share."""
    counted = [trials.counts(session, job.id) for job in group.jobs]
    issued = TrialCounts(*(sum(column) for column in zip(*map(astuple, counted), strict=True)))
    guessed = set[int]().union(*(trials.attempted_tasks(session, job.id) for job in group.jobs))
    ids = {task.id for task in group.tasks}
    imported = [trial for job in group.jobs for trial in imports.trials_of(session, job.id)]
    untried = tuple(task for task in group.tasks if task.best_s is None and task.id not in guessed)
    served = {
        base_workload(task) for task in (*(one for one in group.tasks if one.best_s is not None), *untried)
    }
    fallbacks = {name for job in group.jobs for name in trials.fallbacks(session, job.id)}
    allowed = group.jobs[0].request.budget.trials
    return RemainingBudget(
        trials=max(allowed - issued.pending - issued.leased - issued.done, 0),
        issued=issued,
        tasks=group.tasks,
        imported=tuple(trial for trial in imported if trial.task_id in ids),
        untried=untried,
        failed=tuple(
            task
            for task in group.tasks
            if not task.variant and base_workload(task) not in served and task.workload_hash not in fallbacks
        ),
    )
