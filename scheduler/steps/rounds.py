"""One round of the search: train on what is new, plan a batch of trials, issue it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from core.job import JobState
from records.fleet import devices
from records.jobs import events, jobs, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.jobs.trials import NewTrial
from scheduler.context import Context
from scheduler.planning.batch import fallback_trials, plan_batch, task_searches
from scheduler.planning.budget import read_remaining
from scheduler.planning.job_snapshot import ROUND, next_round, read_snapshot
from scheduler.planning.seeds import find_seeds
from scheduler.steps import attempts, listings, waiting


def run(context: Context, job: Job) -> None:
    """Issue the next batch when it is time for it; end the tuning when nothing is left to do."""
    max_attempts = context.settings.max_failures
    with context.database.begin() as session:
        plan = _plan_round(session, context, job)
        if plan.trials and not attempts.begin(session, job, "searching", context.now(), max_attempts):
            return
    if plan.trials and _issue_batch(context, job, plan):
        # Now, because devices are busy with the batch.
        listings.store_missing(context, job)
        return
    with context.database.begin() as session:
        if not ((plan.trials or not plan.issuable) and _end_tuning_if_idle(session, context, job)):
            waiting.note_missing_device(session, job, context.now())


@dataclass(frozen=True)
class RoundPlan:
    """What to issue now.

    trials     number of trials; 0 when it isn't time for a batch
    issuable   number of trials that the budget allows; 0 when it is used up, or the minutes are
    imported   trials of imported schedules, which come first
    uncovered  the tasks whose fallback schedule comes next
    tasks      the tasks to plan the other trials for
    """

    trials: int
    issuable: int
    imported: Sequence[NewTrial] = ()
    uncovered: Sequence[Task] = ()
    tasks: Sequence[Task] = ()

    @property
    def is_last(self) -> bool:
        """Whether no trial will be left after this round."""
        return self.trials == self.issuable


def _plan_round(session: Session, context: Context, job: Job) -> RoundPlan:
    if _minutes_are_up(context, job):
        trials.drop_pending(session, job.id)
        return RoundPlan(trials=0, issuable=0)
    settings = context.settings
    budget = read_remaining(session, job)
    is_time = budget.num_open <= settings.plan_ahead * settings.batch_size
    # A search that found nothing new finds nothing until another result is in.
    is_exhausted = budget.num_open > 0 and context.exhausted_at.get(job.id) == budget.issued.done
    num_trials = min(budget.issuable, settings.batch_size) if is_time and not is_exhausted else 0
    first = {trial.task_id: trial for trial in reversed(budget.imported)}
    imported, searched = budget.imported, budget.covered
    if budget.issuable > budget.trials:
        # Beyond the budget, only one trial of each untried task is allowed.
        imported = tuple(first[task.id] for task in budget.untried if task.id in first)
        searched = tuple(task for task in budget.untried if task.covered and task.id not in first)
    uncovered = [task for task in budget.untried if not task.covered and task.id not in first]
    imported = imported[:num_trials]
    return RoundPlan(num_trials, budget.issuable, imported, uncovered[: num_trials - len(imported)], searched)


def _minutes_are_up(context: Context, job: Job) -> bool:
    minutes, started_at = job.request.budget.minutes, job.started_at
    return minutes is not None and started_at is not None and context.now() >= started_at + 60 * minutes


def _issue_batch(context: Context, job: Job, plan: RoundPlan) -> int:
    """Plan a batch and issue it; return its number of trials."""
    with context.database.begin() as session:
        snapshot = read_snapshot(session, job, plan.tasks, context.record_cache)
        fallbacks = fallback_trials(session, snapshot.device, plan.uncovered)
    spaces = context.spaces.load([task.workload_hash for task in snapshot.tasks], snapshot.device)
    trained = context.trainer.up_to_date(snapshot.device)
    seeds = find_seeds(context.database, context.spaces, snapshot, spaces)
    searches = task_searches(snapshot, spaces, seeds)
    # A small budget is shared among all tasks.
    share = max(job.request.budget.trials // max(len(searches), 1), 1)
    batch = plan_batch(
        searches,
        trained.model,
        np.random.default_rng((job.request.seed, snapshot.round)),
        plan.trials - len(plan.imported) - len(fallbacks),
        min(context.settings.trials_per_pick, share),
        is_last=plan.is_last,
    )
    with context.database.begin() as session:
        return _store(session, context, job.id, [*plan.imported, *fallbacks, *batch])


def _store(session: Session, context: Context, job_id: str, batch: Sequence[NewTrial]) -> int:
    """Issue the batch unless the job has moved on meanwhile; return the number of trials issued."""
    job = jobs.get(session, job_id)
    if job.state is not JobState.TUNING:
        return 0
    # If planning outlived the claim, another scheduler may have used a part of the budget.
    remaining = read_remaining(session, job)
    return _issue(session, context, job, remaining.tasks, batch[: remaining.issuable])


def _issue(
    session: Session, context: Context, job: Job, tasks: Sequence[Task], batch: Sequence[NewTrial]
) -> int:
    """Issue trials of some of the job's `tasks` as a round; return their number."""
    now, number = context.now(), next_round(session, job)
    issued = trials.add(session, job.id, number, batch, now)
    names = {task.id: task.name for task in tasks}
    data = {
        "round": number,
        "trials": len(issued),
        "tasks": dict(Counter(names[trial.task_id] for trial in batch)),
    }
    events.append(session, job.id, ROUND, data, now)
    if issued:
        jobs.set_message(session, job.id, f"round {number + 1}: measuring {len(issued)} candidates")
    return len(issued)


def _end_tuning_if_idle(session: Session, context: Context, job: Job) -> bool:
    """Go on to publishing unless trials are still being measured, or fallback schedules are yet to be; return
    whether that was so."""
    budget = read_remaining(session, job)
    if budget.num_open:
        context.exhausted_at[job.id] = budget.issued.done
        return False
    if budget.failed and not _minutes_are_up(context, job):
        assert job.device_class is not None, "its trials were measured"
        device = devices.get_class(session, job.device_class)
        if _issue(session, context, job, budget.tasks, fallback_trials(session, device, budget.failed)):
            return False
    message = "compiling the model with the best schedules"
    jobs.advance(session, job.id, {JobState.TUNING}, JobState.PUBLISHING, context.now(), message=message)
    return True
