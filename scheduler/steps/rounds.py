"""One round of the search: train on new records, plan a batch of trials, issue it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
from sqlalchemy.orm import Session

from core.device import Device
from core.job import EndReason, JobState
from records import devices
from records.clock import MAX_SKEW_S
from records.fleet import building, workers
from records.fleet.workers import Capacity
from records.jobs import events, jobs, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.jobs.trials import NewTrial
from scheduler.context import Context, EnoughTrials
from scheduler.planning import disturbed, forecast
from scheduler.planning.batch import fallback_trials, plan_batch, task_rounds
from scheduler.planning.budget import read_remaining
from scheduler.planning.group import Group
from scheduler.planning.initial_programs import find_initial_programs
from scheduler.planning.job_snapshot import ROUND, next_round, read_snapshot
from scheduler.planning.lookahead import Lookahead
from scheduler.steps import attempts, onnx_runtime, tvmscripts, waiting_messages
from search.objectives import EARLY_STOPPING
from system import tracing

# The trials of a batch for each device of the class, at most if planning is slow, and the largest fraction of
# the budget's rest.
TRIALS_PER_DEVICE, MAX_TRIALS_PER_DEVICE = 4, 16
LARGEST_BATCH = 1 / 8
# A batch lasts for this many times as long as the last round took, so that planning keeps ahead.
BATCH_MARGIN = 1.25
# For this long after a look at a job that had enough open trials, wake-ups only count these.
LOOK_INTERVAL_S = 1.0
# The trials that one transaction stores: meanwhile, devices that report results of the job wait.
STORED_TOGETHER = 128
# The time to compile and time the model at the end, in multiples of the import's time.
PUBLISHING_RATIO = 1.3


def has_enough_trials(context: Context, job_id: str) -> bool:
    """Return whether no round is due, because a step found enough open trials less than LOOK_INTERVAL_S ago,
    and there still are. A fleet's leases send many wake-ups a second, and a step takes ten times as long as
    this query. Raises StorageError.
    """
    last = context.enough_trials.get(job_id)
    if last is None or not 0.0 <= context.now() - last.seen_at < LOOK_INTERVAL_S:
        return False
    with context.database.reading() as session:
        return not last.lookahead.is_due(jobs.count_open(session, last.job_ids))


def run(context: Context, job: Job) -> None:
    """Issue the next batch when it is due. End the tuning when a goal is reached or nothing is left to try.
    The first job of a group does this for all jobs. Raises PermanentError if their objective can't be used.
    """
    max_attempts, began_at = context.settings.max_failures, context.now()
    with context.database.begin() as session:
        onnx_runtime.store_first(session, job)
        group = Group.read(session, job)
        if group.planner is None or group.planner.id != job.id:
            if group.planner is not None:
                context.wake("round", group.planner.id)
            for other in group.jobs:
                if other.state in (JobState.QUEUED, JobState.IMPORTING):
                    context.wake("intake", other.id)
            return
        plan = _plan_round(session, context, group)
        if plan.trials and not attempts.begin(session, job, "searching", context.now(), max_attempts):
            return
    issued = 0
    if plan.trials:
        with tracing.span("round", job.trace_parent, job=job.id, trials=plan.trials):
            issued = _issue_batch(context, group, plan)
    if issued:
        # Do this now, while devices are busy with the batch.
        for one in group.tuning:
            tvmscripts.store_during_search(context, one)
        context.planning_s[job.id] = context.now() - began_at
        return
    with context.database.begin() as session:
        is_over = plan.trials or not plan.issuable
        if not (is_over and _end_tuning_if_idle(session, context, job, plan.reached)):
            waiting_messages.note_missing_device(session, job, context.now())


@dataclass(frozen=True)
class RoundPlan:
    """The trials to issue now.

    trials     number of trials; 0 when it isn't time for a batch
    issuable   number of trials that the budget allows; 0 when it is used up, or a goal is reached. It isn't
               counted while enough trials wait
    imported   trials of imported schedules, which come first
    uncovered  the tasks whose fallback schedule comes next
    tasks      the tasks to plan the other trials for
    reached    the goal that has been reached, if any has but for the trials. After the minutes, only untried
               tasks get a trial
    """

    trials: int
    issuable: int
    imported: Sequence[NewTrial] = ()
    uncovered: Sequence[Task] = ()
    tasks: Sequence[Task] = ()
    reached: EndReason | None = None

    @property
    def is_last(self) -> bool:
        """Whether this round issues the last trials."""
        return self.trials == self.issuable


def _plan_round(session: Session, context: Context, group: Group) -> RoundPlan:
    reached = _reached(session, group, context.now())
    if reached is EndReason.MINUTES:
        deadline = _deadline(session, group, context.now())
        for job in group.tuning:
            trials.drop_pending(session, job.id, issued_before=deadline)
    elif reached is not None:
        for job in group.tuning:
            trials.drop_pending(session, job.id, keep_repeats=True)
        return RoundPlan(trials=0, issuable=0, reached=reached)
    job_ids = tuple(job.id for job in group.jobs)
    open_trials = jobs.count_open(session, job_ids)
    device_class = group.tuning[0].device_class
    assert device_class is not None, "a job that tunes has a device class"
    device = devices.get_class(session, device_class)
    capacity = workers.capacity(session, device_class, context.now())
    batch_size = _batch_size(context, group.tuning[0].id, capacity, group.trials_left)
    lookahead = _lookahead(session, context, group.tuning[0], device, capacity, batch_size)
    if not lookahead.is_due(open_trials):
        # To count all trials takes longer with each.
        context.enough_trials[group.tuning[0].id] = EnoughTrials(job_ids, lookahead, context.now())
        return RoundPlan(trials=0, issuable=open_trials.total)
    if group.trials_left > 0 and context.must_not_disturb(session, device):
        return RoundPlan(trials=0, issuable=group.trials_left)
    budget = read_remaining(session, group)
    # A search that found nothing new finds nothing until the next result arrives.
    is_exhausted = budget.num_open > 0 and context.exhausted_at.get(group.tuning[0].id) == budget.issued.done
    issuable = budget.issuable if reached is None else len(budget.untried)
    num_trials = 0 if is_exhausted else min(issuable, batch_size)
    first = {trial.task_id: trial for trial in reversed(budget.imported)}
    imported, searched = budget.imported, budget.covered
    if reached is not None or issuable > budget.trials:
        # Beyond the budget, only one trial of each untried task is allowed.
        imported = tuple(first[task.id] for task in budget.untried if task.id in first)
        searched = tuple(task for task in budget.untried if task.covered and task.id not in first)
    uncovered = [task for task in budget.untried if not task.covered and task.id not in first]
    imported = imported[:num_trials]
    uncovered = uncovered[: num_trials - len(imported)]
    return RoundPlan(num_trials, issuable, imported, uncovered, searched, reached)


def _batch_size(context: Context, planner_id: str, capacity: Capacity, left: int) -> int:
    """Return the number of trials of a batch: a few for each device of the class, so that none waits for the
    next one. There are more if devices measure those in less time than the last round took: in a large batch,
    a trial takes less planning. A small budget is still planned in several batches, because each learns from
    the one before.
    """
    measured = int(BATCH_MARGIN * context.planning_s.get(planner_id, 0.0) * capacity.trials_per_s)
    fleet = max(TRIALS_PER_DEVICE * capacity.devices, measured)
    fleet = min(fleet, MAX_TRIALS_PER_DEVICE * capacity.devices, int(LARGEST_BATCH * left))
    return max(context.settings.batch_size, fleet)


def _lookahead(
    session: Session, context: Context, planner: Job, device: Device, capacity: Capacity, batch_size: int
) -> Lookahead:
    """Return when the next round is due: in time to keep a class's devices busy, as soon as its speed and the
    time of a round are known. With builders, whose trials devices can't measure yet, batches are counted.
    """
    ahead, planning_s = context.settings.batches_ahead(device), context.planning_s.get(planner.id)
    counted = Lookahead(ahead * batch_size)
    if not ahead or planning_s is None or not capacity.trials_per_s:
        return counted
    if building.waits_for_builders(session, planner.id, context.now()):
        return counted
    return Lookahead.during(planning_s, capacity, ahead * context.settings.batch_size)


def _reached(session: Session, group: Group, now: float) -> EndReason | None:
    """Return the goal (other than the number of trials) that the group has reached."""
    budget = group.tuning[0].request.budget
    deadline = _deadline(session, group, now)
    if deadline is not None and now >= deadline:
        return EndReason.MINUTES
    latencies = [(job.request.budget.latency_s, group.latency_s(job)) for job in group.tuning]
    if all(wanted_s and found_s and found_s <= wanted_s for wanted_s, found_s in latencies):
        return EndReason.LATENCY
    if budget.min_gain is not None:
        pace = trials.pace(session, [job.id for job in group.tuning])
        points = _curve(session, group)
        gain = None if pace is None else forecast.gain_of_next_minute(points, pace.first_at, now)
        if gain is not None and gain < budget.min_gain:
            return EndReason.GAIN
    return None


def _deadline(session: Session, group: Group, now: float) -> float | None:
    """Return when a group's minutes are up, None without a limit."""
    minutes = group.tuning[0].request.budget.minutes
    return None if minutes is None else _search_began_at(session, group, now) + 60 * minutes


def _search_began_at(session: Session, group: Group, now: float) -> float:
    """Return when the last of a group's models was imported."""
    states = [event for job in group.tuning for event in events.of_kinds(session, job.id, (events.STATE,))]
    began_at = max((event.at for event in states if event.data["state"] == JobState.TUNING), default=now)
    if began_at > now + MAX_SKEW_S and group.started_at is not None:
        return group.started_at  # the clock was set back, and jobs' times were corrected
    return began_at


def _curve(session: Session, group: Group) -> list[forecast.Point]:
    """Return the sum of the latencies of a group's networks over time."""
    networks = [(job.request.model_weight, group.tasks_of[job.id]) for job in group.tuning]
    return forecast.curve(networks, trials.improvements(session, [job.id for job in group.tuning]))


def _issue_batch(context: Context, group: Group, plan: RoundPlan) -> int:
    """Plan a batch and issue it, in parts while the rest is planned; return its number of trials."""
    job, settings = group.tuning[0], context.settings
    with context.database.begin() as session:
        snapshot = read_snapshot(session, job, plan.tasks, context.record_cache, context.trial_cache)
        fallbacks = fallback_trials(session, snapshot.device, plan.uncovered)
    spaces = context.spaces.load([task.workload_hash for task in snapshot.tasks], snapshot.device)
    with tracing.span("train cost model"):
        trained = context.trainer.up_to_date(snapshot.device)
    initial_programs = find_initial_programs(context.database, context.spaces, snapshot, spaces)
    stop_early = job.request.objective == EARLY_STOPPING
    rounds = task_rounds(snapshot, spaces, initial_programs, group.weights(), stop_early=stop_early)
    # Divide a small budget among all tasks.
    share = max(job.request.budget.trials // max(len(rounds), 1), 1)
    with tracing.span("search"):
        searched = plan_batch(
            rounds,
            trained.model,
            np.random.default_rng((job.request.seed, snapshot.round)),
            plan.trials - len(plan.imported) - len(fallbacks),
            min(settings.trials_per_pick, share),
            settings.epsilon,
            is_last=plan.is_last,
        )
        return _store(context, job, chain(plan.imported, fallbacks, searched))


def _store(context: Context, planner: Job, batch: Iterable[NewTrial]) -> int:
    """Issue the batch in parts until the planner's state changes. Store when the jobs are expected to end.
    Return the number of issued trials.
    """
    rest, issued, is_first = iter(batch), 0, True
    while (part := list(islice(rest, STORED_TOGETHER))) or is_first:
        with context.database.begin() as session:
            jobs.lock(session, planner.id)
            group = Group.read(session, planner)
            if group.planner is None or group.planner.id != planner.id:
                break
            # If the claim lapsed during planning, another scheduler may have used a part of the budget.
            allowed = group.trials_left
            if is_first or allowed < len(part):
                remaining = read_remaining(session, group)
                allowed = remaining.issuable
            new = _issue(session, context, group, part[:allowed])
            if is_first:
                left = max(remaining.trials, new) + remaining.num_open
                expected = _expected_end(session, group, left, context.now()) if new else None
                for one in group.tuning:
                    jobs.set_expected_end(session, one.id, expected)
        issued, is_first = issued + new, False
    return issued


def _issue(session: Session, context: Context, group: Group, batch: Sequence[NewTrial]) -> int:
    """Issue trials of some of the group's tasks as a round; return their number."""
    planner, now = group.tuning[0], context.now()
    number = next_round(session, planner)
    tasks = {task.id: task for task in group.tasks}
    owned: dict[str, list[NewTrial]] = {}
    for trial in batch:
        if trial.task_id in tasks:  # the job may have been cancelled during planning
            owned.setdefault(tasks[trial.task_id].job_id, []).append(trial)
    issued = sum(
        len(trials.add(session, job.id, number, owned[job.id], now))
        for job in group.tuning
        if job.id in owned
    )
    data = {
        "round": number,
        "trials": issued,
        "tasks": dict(Counter(tasks[trial.task_id].name for trial in batch if trial.task_id in tasks)),
    }
    events.append(session, planner.id, ROUND, data, now)
    if issued:
        for job in group.tuning:
            jobs.set_message(session, job.id, f"round {number + 1}: measuring {issued} candidates")
    return issued


def _expected_end(session: Session, group: Group, trials_left: int, now: float) -> float | None:
    """Return when the jobs are expected to be finished; None while that is unknown. `trials_left` are still
    to be measured.
    """
    job, pace = group.tuning[0], trials.pace(session, [job.id for job in group.tuning])
    if pace is None:
        return None
    began_at = {event.data["state"]: event.at for event in events.of_kinds(session, job.id, (events.STATE,))}
    imported_at = began_at[JobState.TUNING]
    importing_s = imported_at - began_at.get(JobState.IMPORTING, imported_at)
    budget = job.request.budget
    if len(group.tuning) > 1:
        budget = replace(budget, latency_s=None)  # each model has its own goal: no common forecast
    left = forecast.seconds_left(
        budget,
        trials_left,
        pace,
        _curve(session, group),
        began_at=_search_began_at(session, group, now),
        now=now,
    )
    return None if left is None else now + left + PUBLISHING_RATIO * importing_s


def _measure_disturbed(session: Session, context: Context, group: Group) -> int:
    """Measure the best schedules again whose measurement was disturbed; return their number."""
    planner, again = group.tuning[0], disturbed.trials_of_disturbed(session, group)
    issued = _issue(session, context, group, again) if again else 0
    if issued:
        message = f"measuring {issued} schedule{'s'[: issued > 1]} again: the device was disturbed before"
        events.append(session, planner.id, disturbed.MEASURED_AGAIN, {"message": message}, context.now())
        for job in group.tuning:
            jobs.set_message(session, job.id, message)
    return issued


def _end_tuning_if_idle(session: Session, context: Context, planner: Job, reached: EndReason | None) -> bool:
    """End the tuning unless trials are being measured, or fallback schedules or disturbed ones have to be.
    Return whether it ended.
    """
    jobs.lock(session, planner.id)
    group = Group.read(session, planner)
    if group.planner is None or group.planner.id != planner.id:
        return False
    budget = read_remaining(session, group)
    if budget.num_open:
        context.exhausted_at[planner.id] = budget.issued.done
        return False
    if budget.failed and reached is not EndReason.MINUTES:
        assert planner.device_class is not None, "its trials were measured"
        device = devices.get_class(session, planner.device_class)
        if _issue(session, context, group, fallback_trials(session, device, budget.failed)):
            return False
    if reached is not EndReason.MINUTES and _measure_disturbed(session, context, group):
        return False
    reason = reached or (EndReason.EXHAUSTED if budget.trials else EndReason.TRIALS)
    for job in group.tuning:
        asked = reason if job.request.budget.trials else None
        message = "compiling the model with the best schedules" + (f": {asked.text}" if asked else "")
        args = (session, job.id, {JobState.TUNING}, JobState.PUBLISHING, context.now())
        if jobs.advance(*args, message=message, end_reason=asked) and job.id != planner.id:
            context.wake("publish", job.id)
    return True
