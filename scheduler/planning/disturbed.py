"""A schedule whose measurement was disturbed is measured again before a model is compiled with it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from records.jobs import events, trials
from records.jobs.trials import NewTrial
from records.schedules import schedules
from scheduler.planning.group import Group
from search.remeasurement import MAX_MEASUREMENTS

# The kind of the event that says that schedules are measured again after the search. A job does this at most
# MAX_TIMES times, whatever its budget: each time for MIN_SCHEDULES, or a schedule for TRIALS_FOR_EACH trials.
MEASURED_AGAIN = "measured_again"
MAX_TIMES = 3
MIN_SCHEDULES = 4
TRIALS_FOR_EACH = 12


def trials_of_disturbed(session: Session, group: Group) -> list[NewTrial]:
    """Return a trial of the best schedule of each task whose repeats differ so much that the device must have
    been disturbed. Schedules that the job has measured often enough are left out. If there are many, those
    that take the most time in the network are returned.
    """
    job = (group.tuning or group.jobs)[0]
    if len(events.of_kinds(session, job.id, [MEASURED_AGAIN])) >= MAX_TIMES or job.device_class is None:
        return []
    tasks = {task.workload_hash: task for task in group.tasks}
    found: list[tuple[float, NewTrial]] = []
    for name, record in schedules.best_many(session, tasks, job.device_class).items():
        if record.source != "trial" or not record.is_disturbed:
            continue
        task, seconds = tasks[name], record.latency_s or 0.0
        repeat = trials.last_repeat(session, task.id, record.trace) + 1
        if repeat < MAX_MEASUREMENTS:
            trial = NewTrial(task.id, name, record.program, record.trace, seconds, repeat)
            found.append((task.weight * seconds, trial))
    found.sort(key=lambda one: one[0], reverse=True)
    spent = sum(one.trials_done for one in group.jobs)
    return [trial for _, trial in found[: max(MIN_SCHEDULES, spent // TRIALS_FOR_EACH)]]
