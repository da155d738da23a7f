"""One round of the search: learn from everything measured, pick tasks, evolve programs, issue a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy.orm import Session

from core.job import JobState
from records.jobs import events, jobs, trials
from records.jobs.jobs import Job
from records.jobs.trials import NewTrial
from scheduler.context import Context
from scheduler.learning.training import lesson
from scheduler.planning import budget
from scheduler.planning.batch import plan, subjects_of
from scheduler.planning.job_snapshot import JobSnapshot, read
from scheduler.planning.similar import seeds
from scheduler.steps import attempts, waiting


def run(context: Context, job: Job) -> None:
    """Issue the next batch when it is time, or end the tuning when nothing is left to do."""
    max_attempts = context.settings.max_failures
    with context.database.begin() as session:
        order = _decide(session, context, job)
        if order.slots and not attempts.begin(session, job, "searching", context.now(), max_attempts):
            return
    if order.slots and _issue(context, job, order):
        return
    with context.database.begin() as session:
        if order.is_last or order.slots:
            _end_if_idle(session, context, job)
        waiting.note_missing_device(session, job, context.now())


@dataclass(frozen=True)
class RoundPlan:
    """How many trials to issue now, and whether none are to follow (budget or minutes spent), or none after
    these (`takes_all`). With `first_guesses` all are for tasks for which nothing was tried: the budget has no
    room for others."""

    slots: int
    is_last: bool
    takes_all: bool = False
    first_guesses: bool = False


def _decide(session: Session, context: Context, job: Job) -> RoundPlan:
    if _time_is_up(job, context.now()):
        trials.drop_pending(session, job.id)
        return RoundPlan(slots=0, is_last=True)
    counts = trials.counts(session, job.id)
    room = budget.room(session, job)
    num_open = counts.pending + counts.leased
    is_time = num_open <= context.settings.plan_ahead * context.settings.batch_size
    # A search that found nothing new finds nothing until another result is in.
    is_barren = num_open > 0 and context.barren.get(job.id) == counts.done
    slots = min(room, context.settings.batch_size) if is_time and not is_barren else 0
    return RoundPlan(
        slots, is_last=room == 0, takes_all=slots == room, first_guesses=budget.left(session, job) < room
    )


def _time_is_up(job: Job, now: float) -> bool:
    minutes = job.request.budget.minutes
    return minutes is not None and job.started_at is not None and now >= job.started_at + 60 * minutes


def _issue(context: Context, job: Job, order: RoundPlan) -> int:
    """Plan trials and store them; how many they were."""
    with context.database.begin() as session:
        situation = read(session, job, context.memory)
        if order.first_guesses:
            situation = replace(situation, tasks=tuple(budget.unknown(session, job.id)))
    hashes = [task.workload_hash for task in situation.tasks]
    spaces = context.spaces.load(context.database, hashes, situation.device)
    learned = lesson(context, situation.device)
    subjects = subjects_of(situation, spaces, seeds(context, situation, spaces))
    rng = np.random.default_rng((job.request.seed, situation.round))
    per_pick = _per_pick(context, job, len(subjects))
    batch = plan(subjects, learned, rng, order.slots, per_pick, is_last=order.takes_all)
    with context.database.begin() as session:
        return _store(session, context, situation, batch)


def _per_pick(context: Context, job: Job, num_tasks: int) -> int:
    """Trials that a task gets at once, fewer where the budget is too small for every task to get so many."""
    return max(1, min(context.settings.trials_per_pick, job.request.budget.trials // max(num_tasks, 1)))


def _store(session: Session, context: Context, situation: JobSnapshot, batch: Sequence[NewTrial]) -> int:
    """Issue the batch unless the job has moved on meanwhile, and never more than the budget allows."""
    job = jobs.get(session, situation.job.id)
    if job.state is not JobState.TUNING:
        return 0
    now = context.now()
    room = budget.room(session, job)
    issued = trials.add(session, job.id, situation.round, batch[:room], now)
    data = {"round": situation.round, "trials": len(issued), "tasks": _names(situation, batch[:room])}
    events.append(session, job.id, attempts.ROUND, data, now)
    if issued:
        jobs.set_message(session, job.id, f"round {situation.round + 1}: measuring {len(issued)} candidates")
    return len(issued)


def _names(situation: JobSnapshot, batch: Sequence[NewTrial]) -> dict[str, int]:
    """How many trials each task got."""
    names = {task.id: task.name for task in situation.tasks}
    return dict(Counter(names[trial.task_id] for trial in batch))


def _end_if_idle(session: Session, context: Context, job: Job) -> None:
    counts = trials.counts(session, job.id)
    if counts.pending + counts.leased == 0:
        message = "compiling the model with the best schedules"
        jobs.advance(session, job.id, {JobState.TUNING}, JobState.PUBLISHING, context.now(), message=message)
    else:
        context.barren[job.id] = counts.done
